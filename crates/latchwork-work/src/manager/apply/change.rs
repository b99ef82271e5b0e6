//! Making the changes of an order: compared with what was approved, run, and recorded.

use serde_json::json;

use super::hooks::{Heartbeat, Ran};
use super::{ApplyWorker, Claimed};
use crate::canonical::{canonical, sha256};
use crate::manager::read;
use crate::manager::review::results_digest;
use crate::{ApplyStep, Diff, Error, ErrorKind, OrderContent, OrderState, RegisteredType, Result};

/// What would be applied, beside what was approved.
enum Compared {
    AsApproved,
    Changed {
        code: &'static str,
        message: String,
        details: Option<serde_json::Value>,
    },
    /// The lease was lost while the preview was made.
    Lost,
}

impl ApplyWorker {
    /// Makes the changes and records them; false where that did not come about.
    pub(super) async fn change(
        &self,
        claimed: &Claimed,
        known: &RegisteredType,
        content: &OrderContent,
        heartbeat: &Heartbeat,
        step: ApplyStep,
    ) -> Result<bool> {
        let clock = &self.manager.inner.clock;
        let begun = clock.now();
        let done = self.try_change(claimed, known, content, heartbeat, step).await;
        let outcome = if matches!(done, Ok(true)) { "applied" } else { "failed" };
        crate::metrics::applied(&claimed.order.order_type, outcome, clock.now().since(begun));
        done
    }

    async fn try_change(
        &self,
        claimed: &Claimed,
        known: &RegisteredType,
        content: &OrderContent,
        heartbeat: &Heartbeat,
        mut step: ApplyStep,
    ) -> Result<bool> {
        if claimed.attempt > claimed.order.settings.apply.max_attempts {
            let message = format!(
                "apply was begun {} times, and no worker came to its end",
                claimed.attempt - 1
            );
            self.fail(claimed, "apply", "apply_attempts", &message, None).await?;
            return Ok(false);
        }
        match self.compare(claimed, known, content, heartbeat).await? {
            Compared::AsApproved => {}
            Compared::Lost => return Ok(false),
            Compared::Changed { code, message, details } => {
                self.fail(claimed, "apply", code, &message, details).await?;
                return Ok(false);
            }
        }
        match heartbeat.run(known.before_apply(content, &step)).await {
            Ran::Done(()) => {}
            Ran::Lost => return Ok(false),
            Ran::Failed { code, message } => {
                let message = format!("before_apply: {message}");
                self.fail(claimed, "apply", code, &message, None).await?;
                return Ok(false);
            }
        }
        if claimed.order.settings.apply.in_transaction {
            return self.change_within(claimed, known, content, heartbeat, step).await;
        }
        match heartbeat.run(known.apply(content, &mut step)).await {
            Ran::Done(diff) => self.record(claimed, diff).await,
            Ran::Lost => Ok(false),
            Ran::Failed { code, message } => {
                self.fail(claimed, "apply", code, &message, None).await?;
                Ok(false)
            }
        }
    }

    /// Compares what would be applied with what was approved.
    async fn compare(
        &self,
        claimed: &Claimed,
        known: &RegisteredType,
        content: &OrderContent,
        heartbeat: &Heartbeat,
    ) -> Result<Compared> {
        let (row, key) = read!(self.manager, session => {
            let row = session.review(claimed.order.id, claimed.version).await?;
            Ok((row, session.content_key(&claimed.order).await?))
        })?;
        let row = row.ok_or_else(|| Error::damaged("the approved content is missing"))?;
        if row.content != key || row.results_digest != results_digest(content) {
            let message = "the results are not those that were approved".to_owned();
            return Ok(Compared::Changed { code: "content_changed", message, details: None });
        }
        if !claimed.order.settings.review.exact_preview {
            return Ok(Compared::AsApproved);
        }
        let made = async { known.preview(content).await.map_err(crate::TypeError::from_error) };
        let preview = match heartbeat.run(made).await {
            Ran::Done(preview) => preview,
            Ran::Lost => return Ok(Compared::Lost),
            Ran::Failed { code, message } => {
                let message = format!("preview: {message}");
                return Ok(Compared::Changed { code, message, details: None });
            }
        };
        let value = serde_json::to_value(&preview).unwrap_or_default();
        let text = preview.is_some().then(|| canonical(&value));
        if text.as_deref().map(sha256) == row.preview.as_deref().map(sha256) {
            return Ok(Compared::AsApproved);
        }
        let before = row.preview.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let diff = Diff::between(before.unwrap_or_default(), value);
        let message = "the preview is not the one that was approved".to_owned();
        let details = Some(json!({"difference": diff.changes, "readable": diff.readable()}));
        Ok(Compared::Changed { code: "preview_changed", message, details })
    }

    /// The same in the store's own transaction: what apply writes there is recorded with it, or nothing is.
    async fn change_within(
        &self,
        claimed: &Claimed,
        known: &RegisteredType,
        content: &OrderContent,
        heartbeat: &Heartbeat,
        step: ApplyStep,
    ) -> Result<bool> {
        heartbeat.stop();
        let mut session = self.manager.store().begin().await?;
        if !self.holds(&mut session, claimed, OrderState::Approved).await? {
            let _ = session.rollback().await;
            return Ok(false);
        }
        let mut step = step.with_session(session);
        let ran = heartbeat.run(known.apply(content, &mut step)).await;
        let session = step.take_session();
        match (ran, session) {
            (Ran::Done(diff), Some(mut session)) => {
                let committed = match self.write_applied(&mut session, claimed, &diff).await {
                    Ok(()) => session.commit().await.map(drop),
                    Err(error) => {
                        drop(session);
                        Err(error)
                    }
                };
                let Err(error) = committed else { return Ok(true) };
                // Whether it was done is known by the store only.
                match self.was_recorded(claimed).await {
                    Ok(true) => Ok(true),
                    // It would be refused again: by a constraint that is checked at the end, or since a
                    // statement of apply has failed before.
                    Ok(false) if matches!(error.kind(), ErrorKind::StoreBackend { .. }) => {
                        let message = format!("the transaction was refused: {}", causes(&error));
                        self.fail(claimed, "apply", "not_committed", &message, None).await?;
                        Ok(false)
                    }
                    _ => Err(error),
                }
            }
            (Ran::Done(_), None) | (Ran::Lost, _) => Ok(false),
            (Ran::Failed { code, message }, session) => {
                // Dropped, and not rolled back by a message: a hook that was cut off may have left one
                // under way on the connection.
                drop(session);
                self.fail(claimed, "apply", code, &message, None).await?;
                Ok(false)
            }
        }
    }

    pub(super) async fn was_recorded(&self, claimed: &Claimed) -> Result<bool> {
        let state =
            read!(self.manager, session => { session.review_state(claimed.order.id).await })?;
        Ok(state.applied_fence == Some(claimed.fence))
    }
}

/// An error with all its causes: what a database refuses is in the innermost.
fn causes(error: &Error) -> String {
    let mut told = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = cause.source();
    }
    told
}
