//! The rules of one row: pure, without clock, storage or threads, the same for every store.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use latchwork_lock::provider::Token;
use serde_json::Value;

use super::{
    Beat, CancelRequest, Cancelled, ContextDraft, ContextHead, DueClaim, GiveBack, ReceivedSignal,
    RunClaim, RunLease, Save, Saved, StoredContext,
};
use crate::{ContextDetails, Error, ErrorKind, Result, Status};

/// So many signals may wait for one context: more are a sender gone wild.
pub(super) const MAX_SIGNALS: usize = 1_000;

/// What came of a context that a runner wanted to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is the runner's.
    Taken,
    /// It was tried too often, and is quarantined or given up now; it must be written.
    GivenUp,
    /// It is not its turn.
    Left,
}

impl StoredContext {
    /// A new row of the first revision.
    pub fn create(draft: &ContextDraft, run: Option<&RunClaim>, now: DateTime<Utc>) -> Self {
        let head = ContextHead {
            id: draft.id,
            machine: draft.machine.clone(),
            entity: draft.entity.clone(),
            status: draft.status,
            revision: 1,
            details: draft.details.clone(),
            waiting: draft.waiting.clone(),
            holds_lock: draft.holds_lock,
            run: run.map(|claim| claim.lease(now)),
            signals: Vec::new(),
            cancel: None,
            attempts: u32::from(run.is_some()),
            last_error: None,
            retry_at: None,
            quarantined_at: None,
            woken_at: None,
            due_at: None,
            created_at: now,
            updated_at: now,
        };
        let mut stored = StoredContext { head, body: draft.body.clone() };
        stored.settle();
        stored
    }

    /// Whether a row that is already there is what this very [`create`](Self::create) made.
    pub fn is_repetition(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> bool {
        let token = |run: Option<Token>| run.map(Token::expose);
        self.head.revision == 1
            && self.body == draft.body
            && token(self.head.run.as_ref().map(|run| run.token)) == token(run.map(|run| run.token))
    }

    /// Takes the run-lease. With a revision, only if it is still that one.
    ///
    /// # Errors
    /// [`ContextBusy`](ErrorKind::ContextBusy) while another's run-lease lasts,
    /// [`ContextConflict`](ErrorKind::ContextConflict) for another revision,
    /// [`TransitionOver`](ErrorKind::TransitionOver) when there is nothing left to do,
    /// [`ContextQuarantined`](ErrorKind::ContextQuarantined) before it is released.
    pub fn claim(
        &mut self,
        revision: Option<u64>,
        claim: &RunClaim,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let head = &mut self.head;
        if let Some(run) = &head.run
            && run.token == claim.token
            && run.expires_at > now
        {
            return Ok(()); // asked again, since the answer was lost
        }
        let cleaning = head.status == Status::Cancelled && head.holds_lock;
        if head.status.is_over() && !cleaning {
            return Err(head.over());
        }
        if head.quarantined_at.is_some() {
            let (id, attempts) = (head.id, head.attempts);
            return Err(ErrorKind::ContextQuarantined { id, attempts }.into());
        }
        if let Some(run) = &head.run
            && run.expires_at > now
        {
            let (runner, until) = (run.runner.clone(), run.expires_at);
            return Err(ErrorKind::ContextBusy { id: head.id, runner, until }.into());
        }
        if let Some(expected) = revision
            && expected != head.revision
        {
            return Err(head.conflict(expected));
        }
        head.forget_error_of_dead_run();
        head.run = Some(claim.lease(now));
        head.attempts = head.attempts.saturating_add(1);
        head.retry_at = None;
        self.touch(now);
        Ok(())
    }

    /// Takes the run-lease of a context that is due for a runner, or gives the context up when it
    /// was tried too often.
    pub fn claim_due(&mut self, due: &DueClaim<'_>, now: DateTime<Utc>) -> Claim {
        let head = &mut self.head;
        let (id, attempts) = (head.id, head.attempts);
        if head.quarantined_at.is_some() || due.exclude.contains(&id) {
            return Claim::Left;
        }
        if let Some(run) = &head.run
            && after(run.expires_at, back_off(due.back_off, attempts)) > now
        {
            return Claim::Left;
        }
        if attempts >= due.max_attempts.max(1) {
            head.forget_error_of_dead_run();
            self.give_up(now);
            return Claim::GivenUp;
        }
        match self.claim(None, due.claim, now) {
            Ok(()) => Claim::Taken,
            Err(_) => Claim::Left,
        }
    }

    /// [Gives up](Self::give_up) a context that was claimed to find out that it was tried too often:
    /// that claim was no attempt.
    pub fn give_up_claimed(&mut self, now: DateTime<Utc>) {
        self.head.attempts = self.head.attempts.saturating_sub(1);
        self.give_up(now);
    }

    /// Ends the attempts: what is to be called off is, a lock that cannot be given back is left to
    /// its ttl, and all else is quarantined.
    pub fn give_up(&mut self, now: DateTime<Utc>) {
        let head = &mut self.head;
        head.run = None;
        head.retry_at = None;
        if head.status.is_over() {
            head.holds_lock = false;
        } else if head.cancel.is_some() {
            head.status = Status::Cancelled;
            head.waiting = None;
            head.holds_lock = false;
            head.signals.clear();
        } else {
            head.quarantined_at = Some(now);
        }
        self.touch(now);
    }

    /// Lets a quarantined context be claimed again; false when it was not quarantined.
    pub fn release_quarantined(&mut self, now: DateTime<Utc>) -> bool {
        let was = self.head.quarantined_at.take().is_some();
        if was {
            self.head.attempts = 0;
            self.head.last_error = None;
            self.touch(now);
        }
        was
    }

    /// Lets a failed context go on from the action that failed. Its body stays as it was: the
    /// machine that reads it takes it up as running.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for one that has not failed.
    pub fn retry(&mut self, now: DateTime<Utc>) -> Result<()> {
        let head = &mut self.head;
        if head.status != Status::Failed {
            let why = format!("{} is {} and has not failed", head.id, head.shown_status());
            return Err(Error::invalid_argument("transition", why));
        }
        let details = serde_json::from_str::<ContextDetails>(&head.details).unwrap_or_default();
        // What failed before its gates were passed has no actions yet.
        head.status = if details.left == 0 { Status::Pending } else { Status::Running };
        head.attempts = 0;
        head.last_error = None;
        self.touch(now);
        Ok(())
    }

    /// Writes a draft over the row, if the caller is at it and knows its latest revision.
    ///
    /// # Errors
    /// [`ContextConflict`](ErrorKind::ContextConflict) when somebody else has gone on with it.
    pub fn save(&mut self, save: &Save<'_>, now: DateTime<Utc>) -> Result<Saved> {
        let head = &mut self.head;
        // The answer to a save may be lost; who asks again finds what was saved, unless another is
        // at it by now.
        let others = head.run.as_ref().is_some_and(|run| run.token != save.token);
        let same = self.body == save.draft.body && head.shown_status() == save.draft.status;
        if head.revision == save.revision + 1 && same && !others {
            return Ok(head.saved());
        }
        let mine = head.run.as_ref().is_some_and(|run| run.token == save.token);
        if !mine || head.revision != save.revision {
            return Err(head.conflict(save.revision));
        }
        let draft = save.draft;
        head.status = draft.status;
        head.entity.clone_from(&draft.entity);
        head.details.clone_from(&draft.details);
        head.waiting.clone_from(&draft.waiting);
        head.holds_lock = draft.holds_lock;
        if let Some(used) = save.used_signal {
            head.signals.retain(|signal| signal.sequence != used);
        }
        if draft.status.is_over() {
            head.cancel = head.cancel.take().filter(|_| draft.status == Status::Cancelled);
            head.signals.clear();
        }
        if draft.status != Status::Paused {
            head.woken_at = None;
        }
        // A process that has not yet learned of the cancellation keeps the run.
        let told = head.cancel.as_ref().filter(|_| !draft.status.is_over());
        let goes_on = save.keep.or(told.map(|_| SHORT));
        match (goes_on, &mut head.run) {
            (Some(ttl), Some(run)) => run.expires_at = after(now, ttl),
            _ => head.run = None,
        }
        if save.progress || !matches!(draft.status, Status::Pending | Status::Running) {
            // A process that keeps the run has begun the next action.
            head.attempts = u32::from(head.run.is_some());
            head.last_error = None;
        }
        head.retry_at = None;
        self.body.clone_from(&draft.body);
        self.touch(now);
        Ok(self.head.saved())
    }

    /// Renews the run-lease, unless it is another's (or nobody's) by now.
    pub fn heartbeat(&mut self, token: Token, ttl: Duration, now: DateTime<Utc>) -> Beat {
        match &mut self.head.run {
            Some(run) if run.token == token => {
                run.expires_at = after(now, ttl);
                self.settle();
                Beat { held: true, cancel: self.head.cancel.clone() }
            }
            _ => Beat::default(),
        }
    }

    /// Gives the run-lease back without a save; false when it was another's (or nobody's).
    pub fn release(&mut self, token: Token, how: &GiveBack<'_>, now: DateTime<Utc>) -> bool {
        let head = &mut self.head;
        let mine = head.run.as_ref().is_some_and(|run| run.token == token);
        if mine {
            head.run = None;
            head.attempts -= u32::from(!how.counts && head.attempts > 0);
            head.retry_at = how.postpone.map(|span| after(now, span));
            if let Some(reason) = how.reason {
                head.last_error = Some(shortened(reason));
            }
            self.settle();
        }
        mine
    }

    /// Keeps a signal, and makes the context due if it waits for it.
    ///
    /// # Errors
    /// [`TransitionOver`](ErrorKind::TransitionOver), or
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when too many are waiting already.
    pub fn signal(&mut self, name: &str, payload: &Value, now: DateTime<Utc>) -> Result<()> {
        let head = &mut self.head;
        if head.status.is_over() {
            return Err(head.over());
        }
        if head.signals.len() >= MAX_SIGNALS {
            return Err(Error::invalid_argument(
                "signal",
                format!("{MAX_SIGNALS} signals wait for this context already, unused"),
            ));
        }
        let sequence = head.signals.last().map_or(1, |last| last.sequence + 1);
        let (name, payload) = (name.to_owned(), payload.clone());
        head.signals.push(ReceivedSignal { sequence, name, payload, at: now });
        self.settle();
        Ok(())
    }

    /// Cancels it: at once if no process runs it; else the process that does learns of it with its next
    /// save.
    ///
    /// # Errors
    /// [`TransitionOver`](ErrorKind::TransitionOver).
    pub fn cancel(&mut self, reason: &str, now: DateTime<Utc>) -> Result<Cancelled> {
        let head = &mut self.head;
        if head.status.is_over() {
            return Err(head.over());
        }
        let request = CancelRequest { reason: reason.to_owned(), at: now };
        if head.run.as_ref().is_some_and(|run| run.expires_at > now) {
            head.cancel = Some(request);
            return Ok(Cancelled::Asked);
        }
        head.run = None;
        head.status = Status::Cancelled;
        head.cancel = Some(request);
        head.waiting = None;
        head.quarantined_at = None;
        head.retry_at = None;
        head.signals.clear();
        self.touch(now);
        Ok(Cancelled::Done)
    }

    /// Makes a paused context due now.
    ///
    /// # Errors
    /// [`TransitionOver`](ErrorKind::TransitionOver).
    pub fn wake(&mut self, now: DateTime<Utc>) -> Result<()> {
        if self.head.status.is_over() {
            return Err(self.head.over());
        }
        if self.head.status == Status::Paused {
            self.head.woken_at.get_or_insert(now);
            self.head.retry_at = None;
            self.settle();
        }
        Ok(())
    }

    fn touch(&mut self, now: DateTime<Utc>) {
        self.head.revision += 1;
        self.head.updated_at = now;
        self.settle();
    }

    fn settle(&mut self) {
        self.head.due_at = self.head.compute_due_at();
    }
}

/// How long the process that runs it may take to act on a cancellation.
const SHORT: Duration = Duration::from_secs(30);

impl RunClaim {
    fn lease(&self, now: DateTime<Utc>) -> RunLease {
        RunLease {
            token: self.token,
            runner: self.runner.clone(),
            expires_at: after(now, self.ttl),
        }
    }
}

impl ContextHead {
    fn saved(&self) -> Saved {
        let cancel = self.cancel.clone().filter(|_| !self.status.is_over());
        Saved { revision: self.revision, cancel }
    }

    fn over(&self) -> Error {
        ErrorKind::TransitionOver { id: self.id, status: self.status }.into()
    }

    fn conflict(&self, expected: u64) -> Error {
        let found = Some(self.revision).filter(|found| *found != expected);
        ErrorKind::ContextConflict { id: self.id, expected, found }.into()
    }
}

/// How long a context is left alone beyond the run-lease of a process that died with it: not at all
/// after the first death.
pub(crate) fn back_off(first: Duration, attempts: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(60);
    match attempts.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => first.saturating_mul(1 << doublings.min(16)).min(LONGEST),
    }
}

/// A reason that a column can take, however much an error has to say.
fn shortened(reason: &str) -> String {
    const LONGEST: usize = 2_000;
    match reason.char_indices().nth(LONGEST) {
        None => reason.to_owned(),
        Some((end, _)) => format!("{}…", &reason[..end]),
    }
}

impl ContextHead {
    /// A run that was not given back ended with its process, which could report nothing: the error
    /// of an attempt before it would be taken for the reason.
    fn forget_error_of_dead_run(&mut self) {
        if self.run.is_some() {
            self.last_error = None;
        }
    }
}

fn after(now: DateTime<Utc>, span: Duration) -> DateTime<Utc> {
    let span = TimeDelta::from_std(span).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(span).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
