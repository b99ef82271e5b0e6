//! Edits that meet: deadlocks, and processes that stop in the middle of one.

use sqlx::{AssertSqlSafe, Row};

use crate::fences::fence;
use crate::relay::Relay;
use crate::support::backend::mysql::{place, test_database};
use crate::support::{connect, eventually, millis, secs, waiter, waiting};
use crate::{number, open};

/// A deadlock that the server ends by undoing our edit: nobody notices.
pub(crate) async fn a_deadlock_is_tried_again() {
    const DEADLOCKS: &str = "SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics \
        WHERE name = 'lock_deadlocks'";
    // Of this test alone, and known by its own statement.
    const KEY: &str = "deadlock";
    const WAITS: &str = "SELECT COUNT(*) FROM information_schema.innodb_trx \
        WHERE trx_state = 'LOCK WAIT' AND LOCATE(LOWER(HEX('lock/deadlock')), trx_query) > 0";
    let address = test_database().await;
    let locks = connect(&address).await;
    let guard = locks.lock(KEY).ttl(secs(90)).acquire().await.expect("a free key");
    let next = waiter(&locks, KEY);
    waiting(&locks, KEY, 1).await;
    let mut other = open(&address).await;
    let mut watch = open(&address).await;
    let before = number(&mut watch, DEADLOCKS).await;
    // It has done more than our edit will have, so ours is the one to be undone.
    let heavy = format!(
        "CREATE TABLE heavy (n INT); START TRANSACTION; INSERT INTO heavy VALUES {}; \
         SELECT * FROM latchwork_lock WHERE name = 'lock/deadlock' FOR UPDATE",
        ["(1)"; 300].join(", ")
    );
    sqlx::raw_sql(AssertSqlSafe(heavy)).execute(&mut other).await.expect("locked");
    let release = tokio::spawn(guard.release());
    eventually("our edit waits for the other", async || {
        // The server shows the same again to a client that asks more often.
        tokio::time::sleep(millis(150)).await;
        // MySQL 9 cannot always tell: what others have bound to a statement need not be text.
        let told = sqlx::raw_sql(WAITS).fetch_one(&mut watch).await;
        told.is_ok_and(|row| row.try_get_unchecked::<i64, _>(0).expect("a number") > 0)
    })
    .await;
    let cross = "SELECT * FROM latchwork_lock_key WHERE name = 'lock/deadlock' FOR UPDATE; COMMIT";
    sqlx::raw_sql(cross).execute(&mut other).await.expect("the other one goes on");
    assert!(number(&mut watch, DEADLOCKS).await > before, "there was no deadlock");
    release.await.expect("no panic").expect("it was tried again");
    next.await.expect("no panic").release().await.expect("its turn");
}

/// That is neither a refusal nor a grant, and it is bounded.
pub(crate) async fn a_key_that_somebody_sits_on_is_an_outage() {
    let address = test_database().await;
    let locks = connect(&address).await;
    fence(&locks, "key").await;
    let mut other = open(&address).await;
    let sit = "START TRANSACTION; SELECT * FROM latchwork_lock_key FOR UPDATE";
    sqlx::raw_sql(sit).execute(&mut other).await.expect("locked");
    let error = locks.lock("key").try_acquire().await.expect_err("nobody can tell");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.to_string().contains("kept the row locked"), "{error}");
    drop(other);
    let guard = locks.lock("key").wait(secs(30)).acquire().await.expect("a free key");
    guard.release().await.expect("held");
}

/// A process that is stopped in the middle of an edit has the key's row until the server loses
/// patience; the words of an edit say when.
pub(crate) async fn an_edit_of_a_stopped_process_ends() {
    let address = test_database().await;
    let locks = connect(&address).await;
    let guard = locks.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let relay = Relay::start(place(&address)).await;
    let stopped = connect(&relay.leads_to(&address)).await;
    relay.swallow_commits();
    let lost = tokio::spawn(async move { stopped.lock("key").wait(secs(2)).acquire().await });
    relay.swallowed().await;
    // Its edit has the row, and its last word never comes: the release waits, or is tried again.
    let _ = guard.release().await;
    eventually("it is free again", async || !locks.exists("key").await.expect("it answers")).await;
    assert!(lost.await.expect("no panic").is_err());
}

/// The release of a dropped request goes over another connection, and may be there first.
pub(crate) async fn a_dropped_resume_takes_nothing_after_its_release() {
    let address = test_database().await;
    let relay = Relay::start(place(&address)).await;
    let (ours, theirs) = (connect(&relay.leads_to(&address)).await, connect(&address).await);
    let guard = ours.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    relay.hold_edits();
    let mut resume = Box::pin(ours.resume(lease.clone()));
    eventually("the edit is held", async || {
        assert!(futures::poll!(resume.as_mut()).is_pending());
        relay.holds_an_edit()
    })
    .await;
    drop(resume);
    ours.close().await;
    relay.pass_edits();
    relay.quiet().await;
    let guard = theirs.resume(lease).await.expect("nobody has resumed it");
    guard.release().await.expect("held");
}
