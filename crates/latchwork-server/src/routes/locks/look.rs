//! Who holds what.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_lock::PageRequest;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::events::{number, unknown};
use super::inspection;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::extract::{Name, Pairs};
use crate::page::page;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(inspect))
}

/// A page of keys that are held or waited for, sorted.
#[utoipa::path(get, path = "/v1/locks", operation_id = "list_locks", tag = "locks",
    params(
        ("prefix" = Option<String>, Query, description = "Keys that begin with this"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000; 100 unless told"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, body = api::LockPage), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut prefix = String::new();
    let mut wanted = PageRequest::default();
    for (name, value) in &pairs {
        match name.as_str() {
            "prefix" => prefix.clone_from(value),
            "limit" => wanted.limit = number("limit", value)?,
            "after" => wanted.after = Some(value.clone()),
            _ => return Err(unknown(name, &["prefix", "limit", "after"])),
        }
    }
    let locks = app.locks()?;
    let (mut found, mut next) = (Vec::new(), None);
    for prefix in prefixes(caller.scope().key_prefixes(), &prefix) {
        let left = PageRequest { limit: wanted.limit - found.len(), after: wanted.after.clone() };
        let part = locks.list(&prefix, left).await?;
        found.extend(part.keys.into_iter().map(inspection));
        if part.next.is_some() || found.len() == wanted.limit {
            // Perhaps nothing is behind it; then the next page is empty.
            next = found.last().map(|last| last.key.clone());
            break;
        }
    }
    let body = api::LockPage { locks: found, next: next.clone() };
    Ok(page("/v1/locks", &pairs, "after", next.as_deref(), body))
}

/// What to list for a caller who asks for keys that begin like this, and may see those that begin with
/// one of these; sorted, none within another, so that the parts are one sorted listing.
fn prefixes(allowed: Option<&[String]>, asked: &str) -> Vec<String> {
    let Some(allowed) = allowed else { return vec![asked.to_owned()] };
    let mut prefixes: Vec<String> = allowed
        .iter()
        .filter_map(|own| match (own.starts_with(asked), asked.starts_with(&**own)) {
            (true, _) => Some(own.clone()),
            (_, true) => Some(asked.to_owned()),
            _ => None,
        })
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup_by(|later, kept| later.starts_with(&**kept));
    prefixes
}

#[cfg(test)]
mod tests {
    use super::prefixes;

    #[test]
    fn a_listing_stays_within_the_limits() {
        let own = ["b/", "a/", "a/x/"].map(str::to_owned);
        assert_eq!(prefixes(None, "c"), ["c"]);
        assert_eq!(prefixes(Some(&own), ""), ["a/", "b/"]);
        assert_eq!(prefixes(Some(&own), "a/x/y"), ["a/x/y"]);
        assert!(prefixes(Some(&own), "c").is_empty());
    }
}

/// Who holds a key and who waits for it, with an estimate of the wait.
#[utoipa::path(get, path = "/v1/locks/keys/{key}", operation_id = "inspect_lock", tag = "locks",
    params(("key" = String, Path, description = "The key, with `/` as `%2F`")),
    responses((status = 200, body = api::LockInspection), Problems))]
async fn inspect(
    State(app): State<App>,
    caller: Caller,
    Name(key): Name,
) -> Result<Json<api::LockInspection>, ApiError> {
    let locks = app.locks()?;
    caller.require_key(&key)?;
    Ok(Json(inspection(locks.inspect(&key).await?)))
}
