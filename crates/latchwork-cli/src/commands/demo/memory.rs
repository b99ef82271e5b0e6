//! The chapters within one process.

use std::sync::Mutex;
use std::time::Duration;

use latchwork::Locks;
use latchwork::lock::{FenceGate, Lease, Mode};

use super::transcript::{Transcript, eventually};
use crate::exit::Failure;

pub(super) async fn one_at_a_time(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "One at a time",
        "Who asks for a taken key learns that it is taken: as a value, not as a catastrophe.",
    );
    let locks = Locks::connect("memory:").await?;
    let ana = locks.lock("order:123").acquire().await?;
    transcript.write_line("Ana locks order:123. Ben tries.");
    let ben = locks.lock("order:123").try_acquire().await?;
    transcript.promise("Ben is told that it is taken", ben.is_none())?;
    let other = locks.lock("order:124").try_acquire().await?;
    transcript.promise("another order is free all the same", other.is_some())?;
    ana.release().await?;
    let ben = locks.lock("order:123").try_acquire().await?;
    transcript.promise("when Ana is done, Ben gets it", ben.is_some())
}

pub(super) async fn in_order(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section("Waiting in order", "First come, first served, and nobody polls.");
    let locks = Locks::connect("memory:").await?;
    let served = std::sync::Arc::new(Mutex::new(Vec::new()));
    let first = locks.lock("printer").acquire().await?;
    let mut tasks = Vec::new();
    for (place, name) in ["Cleo", "Dan", "Eve"].into_iter().enumerate() {
        let (queue, list) = (locks.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = queue.lock("printer").wait_forever().acquire().await;
            list.lock().unwrap_or_else(|broken| broken.into_inner()).push(name);
            drop(guard);
        }));
        eventually(async || {
            locks.inspect("printer").await.is_ok_and(|found| found.waiters.len() == place + 1)
        })
        .await;
    }
    transcript
        .write_line("Cleo, Dan and Eve queue for the printer, in this order. It becomes free.");
    first.release().await?;
    for task in tasks {
        let _ = task.await;
    }
    let served = served.lock().unwrap_or_else(|broken| broken.into_inner()).clone();
    transcript.promise(&format!("served: {}", served.join(", ")), served == ["Cleo", "Dan", "Eve"])
}

pub(super) async fn readers_and_writers(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "Readers and writers",
        "Shared leases coexist; an exclusive one is alone, and does not starve.",
    );
    let locks = Locks::connect("memory:").await?;
    let one = locks.lock("report").shared().acquire().await?;
    let two = locks.lock("report").shared().try_acquire().await?;
    transcript.promise("two readers are in together", two.is_some())?;
    let queue = locks.clone();
    let writer = tokio::spawn(async move { queue.lock("report").wait_forever().acquire().await });
    eventually(async || locks.inspect("report").await.is_ok_and(|found| !found.waiters.is_empty()))
        .await;
    transcript.write_line("A writer waits for them. A third reader comes along.");
    let late = locks.lock("report").shared().try_acquire().await?;
    transcript.promise("the third reader does not slip past the waiting writer", late.is_none())?;
    drop((one, two));
    let writer = writer.await.map_err(|error| Failure::internal(error.to_string()))??;
    transcript.promise("the readers leave, and the writer is in", writer.mode() == Mode::Exclusive)
}

pub(super) async fn the_fence(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "The fence",
        "A lease ends by itself, but its holder may sleep through that. The fence stops it.",
    );
    let locks = Locks::connect("memory:").await?;
    let store = FenceGate::new();
    let ana = locks.lock("account:7").ttl(Duration::from_millis(200)).acquire().await?;
    transcript.write_line(&format!(
        "Ana has the lock for 200 ms, with fence {}, and falls asleep.",
        ana.fence()
    ));
    let ben = locks.lock("account:7").wait(Duration::from_secs(5)).acquire().await?;
    transcript
        .write_line(&format!("Her lease runs out. Ben gets the lock, with fence {}.", ben.fence()));
    transcript.promise("Ben's fence is higher", ben.fence() > ana.fence())?;
    let wrote = store.write("account:7", ben.fence(), || ());
    transcript.promise("the store takes Ben's write", wrote.is_ok())?;
    transcript.write_line("Ana wakes up and writes, as if nothing had happened.");
    let refused = store.write("account:7", ana.fence(), || ());
    transcript.promise("the store refuses her: it has seen a newer fence", refused.is_err())
}

pub(super) async fn loss_is_noticed(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "Loss is noticed in time",
        "A holder stops trusting its lease before the lease ends, even if nobody tells it.",
    );
    let locks = Locks::connect("memory:").await?;
    let guard = locks.lock("job").ttl(Duration::from_secs(1)).acquire().await?;
    guard.lost().await;
    let still_there = locks.exists("job").await?;
    transcript
        .promise("trust ended while the lease was still there", still_there && !guard.is_held())?;
    let kept = locks.lock("long job").ttl(Duration::from_millis(600));
    let kept = kept.auto_renew(Duration::from_secs(60)).acquire().await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    transcript.promise("a renewed lease of 600 ms still holds after 1.5 s", kept.is_held())?;
    transcript.write_line("An administrator breaks it.");
    let broken = locks.break_lock("long job").await?;
    kept.lost().await;
    transcript.promise("its holder learns of it at the next renewal", broken.len() == 1)
}

pub(super) async fn handing_over(transcript: &mut Transcript) -> Result<(), Failure> {
    transcript.section(
        "Handing over",
        "A lease can be stored and resumed elsewhere; of two resumers, one wins.",
    );
    let locks = Locks::connect("memory:").await?;
    let before = locks.lock("approval:9").acquire().await?;
    let fence = before.fence();
    let stored = serde_json::to_string(&before.into_lease().await?);
    let stored = stored.map_err(|error| Failure::internal(error.to_string()))?;
    transcript
        .write_line(&format!("A lease with fence {fence} becomes {} bytes of JSON.", stored.len()));
    let read = || serde_json::from_str::<Lease>(&stored);
    let copies = (read(), read());
    let (Ok(first), Ok(second)) = copies else {
        return Err(Failure::internal("the stored lease cannot be read"));
    };
    let resumed = locks.resume(first).await?;
    transcript.promise(
        &format!("who resumes it goes on with a higher fence, {}", resumed.fence()),
        resumed.fence() > fence,
    )?;
    let late = locks.resume(second).await;
    transcript.promise(
        "who comes second with a copy learns that it is lost",
        late.is_err_and(|error| error.is_loss()),
    )
}
