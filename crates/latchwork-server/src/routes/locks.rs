//! `/v1/locks`: leases on keys, for any language.

mod administer;
mod hold;
mod look;

use latchwork_api as api;
use latchwork_lock::{Holder, Inspection, Mode, Owner, Waiter};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::lock_calls::millis;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().merge(look::routes()).merge(hold::routes()).merge(administer::routes())
}

pub(super) fn inspection(found: Inspection) -> api::LockInspection {
    api::LockInspection {
        key: found.key,
        holders: found.holders.into_iter().map(holder).collect(),
        waiters: found.waiters.into_iter().map(waiter).collect(),
    }
}

fn holder(holder: Holder) -> api::LockHolder {
    api::LockHolder {
        owner: holder.owner.as_ref().map(text),
        process: holder.process,
        note: holder.note,
        mode: mode(holder.mode),
        fence: holder.fence.get(),
        since: holder.since,
        expires_at: holder.expires_at,
        expires_in_ms: millis(holder.expires_in),
    }
}

fn waiter(waiter: Waiter) -> api::LockWaiter {
    api::LockWaiter {
        owner: waiter.owner.as_ref().map(text),
        process: waiter.process,
        note: waiter.note,
        mode: mode(waiter.mode),
        position: waiter.position,
        since: waiter.since,
        expected_wait_ms: waiter.expected_wait.map(millis),
    }
}

fn text(owner: &Owner) -> String {
    owner.as_str().to_owned()
}

fn mode(mode: Mode) -> api::LockMode {
    match mode {
        Mode::Exclusive => api::LockMode::Exclusive,
        Mode::Shared => api::LockMode::Shared,
    }
}
