//! Approving with edits: a reviewer's results beside the agents'.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::approve::Approval;
use crate::manager::WorkClient;
use crate::store::{ItemEdit, ResultRow, Session};
use crate::{Diff, Error, ErrorKind, EventType, ItemId, ItemState, Order, OrderContent, Result};

/// Another result for an item, by a reviewer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultEdit {
    /// The item.
    pub item: ItemId,
    /// The result, by the type's schema.
    pub result: Value,
}

impl WorkClient {
    /// Checks edits, and gives the content that they make.
    pub(super) async fn edited(
        &self,
        content: &OrderContent,
        approval: &Approval,
        known: &crate::RegisteredType,
    ) -> Result<OrderContent> {
        let mut edited = content.clone();
        for (n, edit) in approval.edits.iter().enumerate() {
            if approval.edits[..n].iter().any(|other| other.item == edit.item) {
                return Err(Error::invalid("edits", format!("{} is there twice", edit.item)));
            }
            let Some(item) = edited.items.iter_mut().find(|item| item.id == edit.item) else {
                let reason = format!("the order has no result of an item {} to edit", edit.item);
                return Err(Error::invalid("edits", reason));
            };
            known.validate_submission(&item.input, &edit.result).await?;
            item.edited_from = Some(item.result_version);
            item.result_version += 1;
            item.result = edit.result.clone();
            item.by = self.actor.clone();
        }
        Ok(edited)
    }

    /// Writes edits beside the results that they edit, each with its event.
    pub(super) async fn write_edits(
        &self,
        session: &mut Session<'_>,
        order: &Order,
        approval: &Approval,
        content: &OrderContent,
    ) -> Result<()> {
        let now = session.now();
        let ids: Vec<_> = approval.edits.iter().map(|edit| edit.item).collect();
        let items = session.lock_items(&ids).await?;
        let (mut edits, mut results) = (Vec::new(), Vec::new());
        for item in items {
            let new = approval.edits.iter().find(|edit| edit.item == item.id);
            let old = content.items.iter().find(|old| old.id == item.id);
            let (Some(new), Some(old)) = (new, old) else { continue };
            if item.state != ItemState::Submitted || item.results != old.result_version {
                return Err(ErrorKind::Conflict { entity: "item" }.into());
            }
            let mut edit = ItemEdit::new(item);
            let version = edit.add_result();
            let diff = Diff::between(old.result.clone(), new.result.clone());
            let payload = json!({"result_version": version, "edited_from": old.result_version,
                "of": old.by});
            let mut note = self.note().payload(payload);
            note.diff = Some(json!(diff));
            edit.record(EventType::Edited, note);
            results.push(ResultRow {
                item_id: new.item,
                version,
                actor: self.actor.clone(),
                result: new.result.clone(),
                created_at: now,
                edited_from: Some(old.result_version),
            });
            edits.push(edit);
        }
        if edits.len() != approval.edits.len() {
            return Err(Error::invalid(
                "edits",
                format!("an item is not of the order {}", order.id),
            ));
        }
        session.insert_results(&results).await?;
        session.write_items(edits).await?;
        Ok(())
    }
}
