//! A receipt against an exported trail: the same checks as in `docs/verify.py`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Receipt;
use crate::EventType;
use crate::audit::{ExportedEvent, StoredEvent};
use crate::canonical::sha256;

impl Receipt {
    /// Everything that the trail does not say as the receipt does; nothing for a true one.
    ///
    /// The events are those of [`export`](crate::WorkManager::export), of which only those at the receipt's
    /// positions matter. Whether the trail itself holds together is another question, which
    /// [`verify`](crate::WorkManager::verify) answers, or a [`Verifier`](crate::audit::Verifier).
    pub fn findings<'a>(&self, trail: impl IntoIterator<Item = &'a ExportedEvent>) -> Vec<String> {
        let named: BTreeMap<_, _> =
            self.events.iter().map(|event| (event.seal.position, event)).collect();
        let mut found = BTreeMap::<u64, &ExportedEvent>::new();
        for event in trail {
            if named.contains_key(&event.seal.position) {
                found.insert(event.seal.position, event);
            }
        }
        let (mut findings, mut told) = (Vec::new(), BTreeMap::<&str, &StoredEvent>::new());
        for (position, named) in named {
            match found.get(&position) {
                None => findings.push(format!("position {position} is not in the trail")),
                Some(ExportedEvent { event, seal })
                    if (event.id, &event.event, seal.hash)
                        != (named.id, &named.event, named.seal.hash) =>
                {
                    findings.push(format!("position {position} is another event"));
                }
                Some(ExportedEvent { event, .. }) if event.order_id != self.order_id => {
                    findings.push(format!("position {position} is of another order"));
                }
                Some(ExportedEvent { event, .. }) => drop(told.insert(&event.event, event)),
            }
        }
        let event = |name: EventType| told.get(name.as_str()).copied();
        match (event(EventType::Approved), event(EventType::Applied)) {
            (Some(approved), Some(applied)) => self.compare(approved, applied, &mut findings),
            (None, _) => findings.push("no event says that the order was approved".to_owned()),
            (_, None) => findings.push("no event says that the order was applied".to_owned()),
        }
        findings
    }

    fn compare(&self, approved: &StoredEvent, applied: &StoredEvent, findings: &mut Vec<String>) {
        let read = |text: &Option<String>| {
            serde_json::from_str::<Value>(text.as_deref().unwrap_or("null")).unwrap_or_default()
        };
        let (said, done, diff) =
            (read(&approved.payload), read(&applied.payload), read(&applied.diff));
        if said["outcome"] != "approved" {
            findings.push("the approval that it names did not decide".to_owned());
        }
        let ours = [
            ("content_version", Value::from(self.content_version), &said["content_version"]),
            ("digest", Value::from(self.digest.as_str()), &said["digest"]),
            ("results_digest", Value::from(self.results_digest.as_str()), &said["results_digest"]),
            ("rule", self.rule.clone(), &said["rule"]),
            ("approvals", self.approvals.clone(), &said["approvals"]),
            ("auto_approve", Value::from(self.auto_approve.clone()), &said["auto_approve"]),
            ("applied", self.applied.clone(), &done),
            ("diff", self.diff.clone(), &diff),
        ];
        for (name, ours, theirs) in ours {
            if ours != *theirs {
                findings.push(format!("{name} is not what the trail says"));
            }
        }
        for name in ["content_version", "digest", "results_digest"] {
            if said[name] != done[name] {
                findings.push(format!("{name} was approved as one thing and applied as another"));
            }
        }
        if self.preview.as_deref().is_some_and(|preview| sha256(preview) != self.digest) {
            findings.push("the preview is not that of the digest".to_owned());
        }
    }
}
