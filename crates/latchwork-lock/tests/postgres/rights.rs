//! A role with the least rights, and one that loses them for a while.

use std::time::Instant;

use latchwork_lock::provider::Token;
use latchwork_lock::{Fence, Locks, PostgresLockProvider};
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::refused;
use crate::support::backend::postgres::{admin, place, test_database};
use crate::support::{connect, eventually, millis, secs, waiter, waiting};

/// A role in a schema where the tables are, and what it may is up to the test.
struct Role {
    name: String,
    owner: String,
    address: String,
}

impl Role {
    async fn new() -> Self {
        let owner = test_database().await;
        connect(&owner).await.close().await; // the tables are made
        let name = format!("Role \"{:x}", Token::random().expose());
        let quoted = name.replace('"', "\"\"");
        admin(&owner, &format!("CREATE ROLE \"{quoted}\" LOGIN PASSWORD 'hush'")).await;
        let schema = owner.rsplit_once('=').expect("a schema").1;
        let user = name.replace('"', "%22").replace(' ', "%20");
        let address = format!(
            "postgres://{user}:hush@{}/postgres?options[search_path]={schema}",
            place(&owner)
        );
        Role { name, owner, address }
    }

    fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }

    async fn grant(&self) {
        admin(&self.owner, &PostgresLockProvider::grants(&self.name)).await;
    }

    async fn admin(&self, sql: &str) {
        admin(&self.owner, &sql.replace("ROLE", &self.quoted())).await;
    }

    /// The providers look for what was left behind when they start, and may still be at it.
    async fn drop(self) {
        let drop = format!("DROP OWNED BY {0}; DROP ROLE {0}", self.quoted());
        eventually("the role is dropped", async || {
            let mut admin = PgConnection::connect(&self.owner).await.expect("there");
            sqlx::raw_sql(sqlx::AssertSqlSafe(drop.clone())).execute(&mut admin).await.is_ok()
        })
        .await;
    }
}

async fn use_all(locks: &Locks) {
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let next = waiter(locks, "key");
    waiting(locks, "key", 1).await;
    guard.release().await.expect("held");
    let next = next.await.expect("no panic");
    next.refresh_with(latchwork_lock::Refresh { threshold: Some(millis(0)), ..Default::default() })
        .await
        .expect("held");
    locks.list("", Default::default()).await.expect("it answers");
    assert_eq!(locks.break_lock("key").await.expect("it answers").len(), 1);
    drop(next);
    locks.check_fence("key", Fence::new(1)).await.expect("it answers").expect("the first");
    locks.close().await;
}

/// What the printed statements grant is enough for all that the locks can, and for raising the
/// fences after a restore.
pub(crate) async fn what_is_granted_is_enough() {
    let role = Role::new().await;
    role.grant().await;
    let locks = connect(&role.address).await;
    use_all(&locks).await;
    let before = locks.lock("restored").acquire().await.expect("a free key").fence();
    admin(&role.owner, "SELECT setval('latchwork_lock_fence', 1000)").await;
    let after = connect(&role.address).await.lock("restored").acquire().await.expect("a free key");
    assert!(after.fence() > before, "{} after {before}", after.fence());
    drop((locks, after));
    role.drop().await;
}

/// A right that is missing is told at the start, by its name.
pub(crate) async fn missing_rights_are_told_at_the_start() {
    let role = Role::new().await;
    role.grant().await;
    for (right, from) in [
        ("USAGE", "SEQUENCE latchwork_lock_fence"),
        ("UPDATE", "SEQUENCE latchwork_lock_fence"),
        ("SELECT", "SEQUENCE latchwork_lock_fence"),
        ("INSERT", "latchwork_lock"),
        ("DELETE", "latchwork_lock"),
        ("UPDATE", "latchwork_lock_client"),
    ] {
        role.admin(&format!("REVOKE {right} ON {from} FROM ROLE")).await;
        let name = from.strip_prefix("SEQUENCE ").unwrap_or(from);
        refused(&role.address, "lock_backend", name).await;
        refused(&role.address, "lock_backend", right).await;
        refused(&role.address, "lock_backend", "--role").await;
        role.admin(&format!("GRANT {right} ON {from} TO ROLE")).await;
    }
    let function = "FUNCTION latchwork_lock_give_one";
    role.admin(&format!("REVOKE EXECUTE ON {function} FROM ROLE, PUBLIC")).await;
    refused(&role.address, "lock_backend", "EXECUTE on function latchwork_lock_give_one").await;
    role.admin(&format!("GRANT EXECUTE ON {function} TO ROLE")).await;
    use_all(&connect(&role.address).await).await;
    role.drop().await;
}

/// A right that is gone for two seconds ends no lease, and the reason is known meanwhile.
pub(crate) async fn a_renewal_outlasts_a_right_that_is_gone_for_a_while() {
    let role = Role::new().await;
    role.grant().await;
    let locks = connect(&role.address).await;
    let guard = locks.lock("key").ttl(secs(9)).auto_renew(secs(60)).acquire().await.expect("free");
    role.admin("REVOKE UPDATE ON latchwork_lock FROM ROLE").await;
    eventually("a renewal failed", async || guard.renewal_error().is_some()).await;
    let why = guard.renewal_error().expect("just seen").to_string();
    assert!(why.contains("right"), "{why}");
    assert!(guard.is_held(), "it has most of its time yet");
    role.admin("GRANT UPDATE ON latchwork_lock TO ROLE").await;
    eventually("it is renewed", async || guard.renewal_error().is_none()).await;
    assert!(guard.is_held());
    guard.release().await.expect("held");

    // For good: it is tried until trust ends, and what is said then names the cause.
    let ttl = secs(3);
    let asked = Instant::now();
    let guard = locks.lock("key").ttl(ttl).auto_renew(secs(60)).acquire().await.expect("free");
    role.admin("REVOKE UPDATE ON latchwork_lock FROM ROLE").await;
    guard.lost().await;
    assert!(asked.elapsed() > ttl * 3 / 4, "given up after {:?}", asked.elapsed());
    let why = guard.renewal_error().expect("it failed").to_string();
    assert!(why.contains("right"), "{why}");
    role.admin("GRANT UPDATE ON latchwork_lock TO ROLE").await;
    drop((guard, locks));
    role.drop().await;
}
