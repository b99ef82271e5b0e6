//! What holders do, and the ways in which they end.

use std::time::Duration;

use latchwork_lock::{Guard, Mode, Refresh};
use rand::RngExt;
use rand::rngs::StdRng;

use super::mailbox::StoredLease;
use super::process_context::ProcessContext;
use crate::history::What;

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// A pause between renewals that is short beside any ttl.
const SHORT: Duration = Duration::from_millis(15);

/// Holds it for a while, writes to what it guards, and ends in one of the ways.
pub(super) async fn hold(
    context: &ProcessContext,
    request: u64,
    guard: Guard,
    chance: &mut StdRng,
) {
    let read = announce(context, request, &guard).await;
    pause(chance, 12).await;
    write(context, request, &guard, read).await;
    let key = guard.key().to_owned();
    let record = |what| context.record(&key, request, what);
    match chance.random_range(0..40) {
        // Stopped past its end, and then it goes on as if nothing had happened.
        0 => {
            guard.lost().await;
            record(What::Expired);
            pause(chance, 200).await;
            write(context, request, &guard, read).await;
            release(guard).await;
        }
        // Nobody ever releases it.
        1 => std::mem::forget(guard),
        2..8 => {
            // Some for longer than any ttl, so that only the renewals can be what holds it.
            let span = if chance.random_bool(0.3) { guard.ttl() / 3 } else { SHORT };
            for _ in 0..chance.random_range(1..7) {
                tokio::time::sleep(span).await;
                renew(context, request, &guard).await;
            }
            write(context, request, &guard, read).await;
            record(What::Releasing);
            release(guard).await;
        }
        8..12 => hand_over(context, request, guard).await,
        12..18 => {
            record(What::Releasing);
            drop(guard);
        }
        // The release is dropped midway.
        18..21 => {
            record(What::Releasing);
            let patience = Duration::from_micros(chance.random_range(0..300));
            let _ = tokio::time::timeout(patience, release(guard)).await;
        }
        _ => {
            record(What::Releasing);
            release(guard).await;
        }
    }
}

async fn renew(context: &ProcessContext, request: u64, guard: &Guard) {
    context.record(guard.key(), request, What::Renewing);
    match guard.refresh_with(FORCE).await {
        Ok(()) => {
            let until = context.now().after(guard.remaining());
            context.record(guard.key(), request, What::Renewed { until });
        }
        Err(error) if error.is_loss() => context.record(guard.key(), request, What::Lost),
        Err(error) => assert!(error.is_temporary(), "a renewal: {error}"),
    }
}

async fn release(guard: Guard) {
    match guard.release().await {
        // Broken, or over: that happens here.
        Err(error) if !error.is_loss() => assert!(error.is_temporary(), "a release: {error}"),
        _ => {}
    }
}

async fn hand_over(context: &ProcessContext, request: u64, guard: Guard) {
    let key = guard.key().to_owned();
    match guard.into_lease().await {
        Ok(lease) => {
            context.record(&key, request, What::HandedOver);
            context.mailbox.put(&StoredLease { request, lease }).expect("leases can be written");
        }
        Err(error) => {
            assert!(error.is_loss() || error.is_temporary(), "a hand-over: {error}");
            context.record(&key, request, What::Lost);
        }
    }
}

/// Tells the gate of the fence, and sees how many writes there were. Of readers the gate wants to
/// know nothing: fences of those who are in together say nothing about each other.
async fn announce(context: &ProcessContext, request: u64, guard: &Guard) -> Option<u64> {
    if guard.mode() == Mode::Shared {
        return None;
    }
    let (gate, key, fence) = (context.gate.clone(), guard.key().to_owned(), guard.fence());
    let announcing = move || gate.advance(&key, fence, request);
    // On a thread that may block, since the process that has the file may be stopped.
    let answer = tokio::task::spawn_blocking(announcing).await.expect("no panic");
    answer.expect("the gate can be written").ok()
}

/// A write that was made on the ground of what the announcement saw, unless it was refused.
async fn write(context: &ProcessContext, request: u64, guard: &Guard, read: Option<u64>) {
    let Some(read) = read else { return };
    let (gate, key, fence) = (context.gate.clone(), guard.key().to_owned(), guard.fence());
    let writing = move || gate.write(&key, fence, request, read);
    let answer = tokio::task::spawn_blocking(writing).await.expect("no panic");
    let _refused_or_not = answer.expect("the gate can be written");
}

async fn pause(chance: &mut StdRng, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(chance.random_range(0..most_ms))).await;
}
