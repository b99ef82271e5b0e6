//! How often the server is asked.

use latchwork_lock::{Locks, MySqlLockProvider};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use crate::FORCE;
use crate::relay::Relay;
use crate::support::backend::mysql::{place, test_database};
use crate::support::{connect, waiter, waiting};

/// How often the server is asked, counted on the wire: each time that the talk turns.
pub(crate) async fn messages_are_as_few_as_declared() {
    let address = test_database().await;
    connect(&address).await;
    let relay = Relay::start(place(&address)).await;
    let options: MySqlConnectOptions = relay.leads_to(&address).parse().expect("an address");
    let pool = MySqlPoolOptions::new().max_connections(1).test_before_acquire(false);
    let pool = pool.connect_with(options).await.expect("there");
    let locks = Locks::new(MySqlLockProvider::from_pool(pool).await.expect("there"));
    // Every statement is prepared once for a connection, and the first sweep is over.
    let guard = locks.lock("key").acquire().await.expect("a free key");
    guard.refresh_with(FORCE).await.expect("held");
    guard.release().await.expect("held");
    relay.quiet().await;

    macro_rules! turns {
        ($job:expr) => {{
            let before = relay.turns();
            let out = $job.await.expect("it answers");
            (relay.turns() - before, out)
        }};
    }
    let (turns, held) = turns!(locks.lock("key").acquire());
    assert_eq!(turns, 1, "taking a key that was used lately");
    assert_eq!(turns!(held.refresh_with(FORCE)).0, 1, "renewing");
    assert_eq!(turns!(locks.inspect("key")).0, 1, "looking");
    let (turns, refused) = turns!(locks.lock("key").try_acquire());
    assert!(refused.is_none());
    assert_eq!(turns, 3, "being refused");
    assert_eq!(turns!(held.release()).0, 1, "giving back");
    let (turns, first) = turns!(locks.lock("new").shared().acquire());
    assert_eq!(turns, 2, "taking a key that is new");
    let (turns, second) = turns!(locks.lock("new").shared().acquire());
    assert_eq!(turns, 3, "taking a key that others share");
    assert_eq!(turns!(first.release()).0, 3, "giving back what others share");
    assert_eq!(turns!(second.release()).0, 1, "giving back what others have shared");
}

/// Within a process a key goes from one to the next in the message that gives it back, and
/// who comes to wait for it stands in line by one message, too: the rules are hardly asked.
pub(crate) async fn a_key_goes_from_task_to_task_by_single_messages() {
    let address = test_database().await;
    connect(&address).await;
    let relay = Relay::start(place(&address)).await;
    let locks = connect(&relay.leads_to(&address)).await;
    let held = locks.lock("key").acquire().await.expect("a free key");
    let mut fence = held.fence();
    let mut line = Vec::new();
    for count in 1..=3 {
        line.push(waiter(&locks, "key"));
        waiting(&locks, "key", count).await;
    }
    held.release().await.expect("held");
    for next in line {
        let guard = next.await.expect("no panic");
        assert_eq!(guard.previous_fence(), Some(fence));
        assert!(guard.fence() > fence && guard.waited());
        fence = guard.fence();
        guard.release().await.expect("held");
    }
    assert!(!locks.exists("key").await.expect("it answers"));
    // Three would come, three would give back and three would claim. A look at the wrong moment may
    // make one ask that has been served.
    assert!(relay.edits() < 6, "{} edits", relay.edits());
}
