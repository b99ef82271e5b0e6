//! Review, parts and the trail in the words of the HTTP contract.

use latchwork_api as api;
use latchwork_work as work;

use super::{actor, order};

pub(crate) fn preview(preview: work::Preview) -> api::Preview {
    api::Preview {
        order_id: preview.order_id.as_uuid(),
        content_version: preview.content_version,
        digest: preview.digest,
        diff: preview.diff.map(diff),
        exact: preview.exact,
        not_ready: preview.not_ready.into_iter().map(violation).collect(),
        review: review_status(preview.review),
    }
}

fn diff(diff: work::Diff) -> api::Diff {
    let change = |change: work::Change| api::Change {
        op: change.op.as_str().to_owned(),
        path: change.path,
        value: change.value,
    };
    api::Diff {
        before: diff.before,
        after: diff.after,
        changes: diff.changes.into_iter().map(change).collect(),
        summary: diff.summary,
    }
}

pub(crate) fn violation(found: work::Violation) -> api::FieldProblem {
    api::FieldProblem { field: found.field, code: found.code, message: found.message }
}

fn review_status(review: work::ReviewStatus) -> api::ReviewStatus {
    let approval = |one: work::ApprovalInfo| api::ApprovalInfo {
        by: actor(one.by),
        roles: one.roles,
        at: one.at,
    };
    api::ReviewStatus {
        approvals: review.approvals.into_iter().map(approval).collect(),
        needed: review.needed,
        missing: review.missing,
        due: review.due,
        escalated_to: review.escalated_to,
    }
}

pub(crate) fn approval(id: work::OrderId, request: api::ApproveRequest) -> work::Approval {
    let edit = |edit: api::ResultEdit| work::ResultEdit {
        item: work::ItemId::from_uuid(edit.item),
        result: edit.result,
    };
    work::Approval {
        order: id,
        content_version: request.content_version,
        digest: request.digest,
        edits: request.edits.into_iter().map(edit).collect(),
        comment: request.comment,
    }
}

pub(crate) fn approved(approved: work::Approved) -> api::Approved {
    api::Approved {
        order: order(approved.order),
        counted: approved.counted,
        content_version: approved.content_version,
        digest: approved.digest,
        review: review_status(approved.review),
    }
}

pub(crate) fn rejection(id: work::OrderId, request: api::RejectRequest) -> work::Rejection {
    let error = |error: api::ReviewError| work::ReviewError {
        code: error.code,
        message: error.message,
        field: error.field,
        item: error.item.map(work::ItemId::from_uuid),
    };
    work::Rejection {
        order: id,
        errors: request.errors.into_iter().map(error).collect(),
        rework: request.rework,
        items: request.items.map(|ids| ids.into_iter().map(work::ItemId::from_uuid).collect()),
        comment: request.comment,
    }
}

pub(crate) fn apply_status(lease: Option<work::ApplyLease>) -> api::ApplyStatus {
    let lease = lease.map(|lease| api::ApplyLease {
        worker: lease.worker,
        expires_at: lease.expires_at,
        fence: lease.fence,
    });
    api::ApplyStatus { lease }
}

pub(crate) fn receipt(receipt: work::Receipt) -> api::Receipt {
    let event = |event: work::ReceiptEvent| api::ReceiptEvent {
        id: event.id.as_uuid(),
        event: event.event,
        position: event.seal.position,
        hash: event.seal.hash.to_string(),
    };
    api::Receipt {
        format: receipt.format,
        order_id: receipt.order_id.as_uuid(),
        content_version: receipt.content_version,
        digest: receipt.digest,
        results_digest: receipt.results_digest,
        preview: receipt.preview,
        rule: receipt.rule,
        auto_approve: receipt.auto_approve,
        approvals: receipt.approvals,
        applied: receipt.applied,
        diff: receipt.diff,
        events: receipt.events.into_iter().map(event).collect(),
    }
}

pub(crate) fn submitted_part(part: work::SubmittedPart) -> api::SubmittedPart {
    api::SubmittedPart {
        item_id: part.item_id.as_uuid(),
        order_id: part.order_id.as_uuid(),
        key: part.key,
        seq: part.seq,
        status: part.status.as_str().to_owned(),
        checksum: part.checksum,
        replaced: part.replaced,
    }
}

pub(crate) fn part(part: work::Part) -> api::Part {
    let body = |body: work::PartBody| api::PartBody {
        payload: body.payload,
        evidence: body.evidence,
        notes: body.notes,
    };
    api::Part {
        key: part.key,
        seq: part.seq,
        status: part.status.as_str().to_owned(),
        checksum: part.checksum,
        bytes: part.bytes,
        errors: part.errors.into_iter().map(violation).collect(),
        agent: part.agent,
        fence: part.fence,
        submitted_at: part.submitted_at,
        body: part.body.map(body),
    }
}

pub(crate) fn submission(request: api::SubmitRequest) -> work::Submission {
    work::Submission {
        lease: work::LeaseId::from_uuid(request.lease),
        result: request.result,
        evidence: request.evidence,
        notes: request.notes,
    }
}

pub(crate) fn submitted(done: work::Submitted) -> api::Submitted {
    api::Submitted {
        item_id: done.item_id.as_uuid(),
        order_id: done.order_id.as_uuid(),
        state: done.state.as_str().to_owned(),
        result_version: done.result_version,
    }
}

pub(crate) fn verification(found: &work::Verification) -> api::Verification {
    let finding = |finding| serde_json::to_value(finding).unwrap_or_default();
    api::Verification {
        intact: found.is_intact(),
        events: found.events,
        position: found.position,
        findings: found.findings.iter().map(finding).collect(),
        unsealed: found.unsealed,
        unsealed_since: found.unsealed_since,
    }
}
