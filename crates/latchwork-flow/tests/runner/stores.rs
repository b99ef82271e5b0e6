//! What only the databases themselves can show: own pools, bad addresses, broken connections and
//! damaged rows.

use latchwork_contract::proxy::Proxy;
use latchwork_flow::store::{ContextDraft, ContextStore, DueClaim, Proof, RunClaim, Save};
use latchwork_flow::{Contexts, PostgresContextStore, SqliteContextStore, Status, TransitionId};
use latchwork_lock::SystemClock;
use libtest_mimic::{Failed, Trial};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, SqlitePool};

use crate::test_database::TestDatabase;
use crate::{block_on, secs, until};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($name:ident),* $(,)?) => {$(
            trials.push((stringify!($name), (|| block_on($name())) as fn()));
        )*};
    }
    tests![
        sqlite_serves_from_your_own_pool,
        sqlite_refuses_a_pool_in_memory,
        sqlite_does_not_write_to_a_file_that_was_moved,
        sqlite_may_be_started_by_many,
        sqlite_passes_over_a_damaged_row,
        sqlite_gives_no_place_to_rows_that_nobody_can_claim,
        bad_addresses_say_what_is_wrong,
        postgres_serves_from_your_own_pool_of_one,
        postgres_may_be_started_by_many,
        postgres_replaces_broken_connections,
        postgres_passes_over_a_damaged_row,
        postgres_takes_silence_for_an_outage,
        postgres_finds_a_lost_answer_by_asking_again,
    ];
    let there = std::env::var_os("LATCHWORK_TEST_POSTGRES").is_some();
    let in_ci = std::env::var_os("CI").is_some();
    let trial = |(name, test): (&'static str, fn())| {
        let missing = name.starts_with("postgres") && !there;
        let trial = Trial::test(format!("stores::{name}"), move || {
            if missing {
                return Err(Failed::from("no server; `scripts/services up postgres` starts one"));
            }
            test();
            Ok(())
        });
        trial.with_ignored_flag(missing && !in_ci)
    };
    trials.into_iter().map(trial).collect()
}

fn draft() -> ContextDraft {
    let id = TransitionId::new(SystemClock::shared().wall());
    ContextDraft {
        id,
        machine: "stores".to_owned(),
        entity: None,
        status: Status::Pending,
        body: format!("{{\"of\":\"{id}\"}}"),
        details: "{}".to_owned(),
        waiting: None,
        holds_lock: false,
    }
}

/// A context's whole life.
async fn live(store: &impl ContextStore) {
    let (draft, claim) = (draft(), RunClaim::new(secs(60)));
    store.create(&draft, None).await.expect("it is new");
    let rows = store.claim_due(&DueClaim::new("stores", 10, &claim)).await.expect("it answers");
    assert_eq!(rows.len(), 1);
    let proof = Proof { id: draft.id, token: claim.token };
    assert!(store.heartbeat(proof, secs(60)).await.expect("it answers").held);
    let over = ContextDraft { status: Status::Completed, ..draft };
    let revision = rows[0].head.revision;
    let (token, used_signal) = (claim.token, None);
    let save = Save { draft: &over, revision, token, keep: None, used_signal, progress: false };
    store.save(&save).await.expect("it is ours");
    assert!(store.delete(over.id).await.expect("it answers"));
}

// ---- SQLite ------------------------------------------------------------------------------------

async fn sqlite_serves_from_your_own_pool() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}?mode=rwc", directory.path().join("a.db").display());
    let pool = SqlitePool::connect(&url).await.expect("a pool");
    let store = SqliteContextStore::from_pool(&pool).await.expect("a store");
    live(&store).await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM latchwork_flow_context")
        .fetch_one(&pool)
        .await
        .expect("in the same file");
    assert_eq!(seen, 0);
    store.close().await;
    let error = store.load(draft().id).await.expect_err("it is closed");
    assert_eq!(error.code(), "store_unavailable");
}

async fn sqlite_refuses_a_pool_in_memory() {
    let pool = SqlitePool::connect("sqlite::memory:").await.expect("a pool");
    let error = SqliteContextStore::from_pool(&pool).await.expect_err("nobody else sees it");
    assert_eq!(error.code(), "store_backend");
    assert!(error.to_string().contains("file"), "{error}");
}

async fn sqlite_does_not_write_to_a_file_that_was_moved() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.db");
    let store = SqliteContextStore::open_file(&path).await.expect("a store");
    let draft = draft();
    store.create(&draft, None).await.expect("it is new");
    std::fs::rename(&path, directory.path().join("b.db")).expect("moved");
    for error in [
        store.create(&self::draft(), None).await.expect_err("moved"),
        store.claim(draft.id, None, &RunClaim::new(secs(1))).await.expect_err("moved"),
        store
            .claim_due(&DueClaim::new("stores", 1, &RunClaim::new(secs(1))))
            .await
            .expect_err("moved"),
        store.cancel(draft.id, "why").await.expect_err("moved"),
        store.load(draft.id).await.expect_err("moved"),
    ] {
        assert_eq!(error.code(), "store_backend", "{error}");
        assert!(error.to_string().contains("moved"), "{error}");
    }
}

async fn many_start(address: &str) {
    let start = |_| {
        let address = address.to_owned();
        tokio::spawn(async move { Contexts::connect(&address).await.expect("a store") })
    };
    for started in (0..6).map(start).collect::<Vec<_>>() {
        live(&started.await.expect("no panic")).await;
    }
}

async fn sqlite_may_be_started_by_many() {
    let test_database = TestDatabase::sqlite();
    many_start(&test_database.address).await;
}

async fn sqlite_passes_over_a_damaged_row() {
    let test_database = TestDatabase::sqlite();
    let store = Contexts::connect(&test_database.address).await.expect("a store");
    let pool = SqlitePool::connect(&test_database.address).await.expect("the same file");
    passes_over(&store, async |sql| {
        sqlx::raw_sql(sql).execute(&pool).await.expect("an accident");
    })
    .await;
}

/// As many as a runner has places, all due before the others.
async fn sqlite_gives_no_place_to_rows_that_nobody_can_claim() {
    let test_database = TestDatabase::sqlite();
    let store = Contexts::connect(&test_database.address).await.expect("a store");
    let pool = SqlitePool::connect(&test_database.address).await.expect("the same file");
    for damage in ["status = 'Pending'", "id = CAST(id AS BLOB)", "quarantined_at = 1"] {
        for _ in 0..4 {
            let bad = draft();
            store.create(&bad, None).await.expect("it is new");
            let sql = format!("UPDATE latchwork_flow_context SET {damage} WHERE id = '{}'", bad.id);
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("an accident");
        }
    }
    let odd = draft();
    store.create(&odd, None).await.expect("it is new");
    let sql = format!("UPDATE latchwork_flow_context SET due_at = 3.5 WHERE id = '{}'", odd.id);
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("an accident");
    let good = [draft(), draft()];
    for good in &good {
        store.create(good, None).await.expect("it is new");
    }
    let claim = RunClaim::new(secs(60));
    let rows = store.claim_due(&DueClaim::new("stores", 4, &claim)).await.expect("it answers");
    let mut claimed: Vec<_> = rows.iter().map(|row| row.head.id).collect();
    claimed.sort_unstable();
    let mut expected = vec![odd.id, good[0].id, good[1].id];
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}

/// One damaged row must not keep the others from their turn, and is named when asked for.
async fn passes_over(store: &Contexts, damage: impl AsyncFnOnce(&'static str)) {
    let (bad, good) = (draft(), draft());
    store.create(&bad, None).await.expect("it is new");
    damage("UPDATE latchwork_flow_context SET status = 'lost', holds_lock = true").await;
    store.create(&good, None).await.expect("it is new");
    let rows = store
        .claim_due(&DueClaim::new("stores", 10, &RunClaim::new(secs(60))))
        .await
        .expect("it answers");
    assert_eq!(rows.iter().map(|row| row.head.id).collect::<Vec<_>>(), [good.id]);
    let error = Contexts::load(store, bad.id).await.expect_err("it is damaged");
    assert_eq!(error.code(), "corrupt_context");
    let told = error.to_string();
    assert!(told.contains("status") && told.contains(&bad.id.to_string()), "{told}");
}

// ---- PostgreSQL --------------------------------------------------------------------------------

async fn bad_addresses_say_what_is_wrong() {
    for (address, code, word) in [
        ("postgres://user:hush@127.0.0.1:1/x", "store_unavailable", "no server listens"),
        ("postgres://user:hush@127.0.0.1:1/x?flavour=hush", "invalid_argument", "flavour"),
        ("sqlite:///no/such/directory/hush.db", "store_backend", "directory"),
        ("sqlite::memory:", "invalid_argument", "memory:"),
    ] {
        let error = Contexts::connect(address).await.expect_err(word);
        let text = error.to_string();
        assert_eq!(error.code(), code, "{text}");
        assert!(text.contains(word) && !text.contains("hush"), "{text}");
    }
}

async fn postgres_serves_from_your_own_pool_of_one() {
    let test_database = TestDatabase::postgres().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&test_database.address).await;
    let pool = pool.expect("the server is there");
    let store = PostgresContextStore::from_pool(pool.clone()).await;
    let store = store.expect("a store");
    live(&store).await;
    assert!(PostgresContextStore::schema().contains("latchwork_flow_context"));
}

async fn postgres_may_be_started_by_many() {
    let test_database = TestDatabase::postgres().await;
    many_start(&test_database.address).await;
}

async fn postgres_replaces_broken_connections() {
    let test_database = TestDatabase::postgres().await;
    let name = format!("stores_{}", std::process::id());
    let address = format!("{}&application_name={name}", test_database.address);
    let store = PostgresContextStore::connect(&address).await.expect("a store");
    let admin = PgPool::connect(&test_database.address).await.expect("the server is there");
    for _ in 0..3 {
        // Several connections, so that several are broken.
        let looks = (0..5).map(|_| store.next_due("stores"));
        for look in futures::future::join_all(looks).await {
            assert_eq!(look.expect("it answers"), None);
        }
        let broken: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = $1",
        )
        .bind(&name)
        .fetch_one(&admin)
        .await
        .expect("an accident");
        assert!(broken >= 1);
        live(&store).await;
    }
}

async fn postgres_passes_over_a_damaged_row() {
    let test_database = TestDatabase::postgres().await;
    let store = Contexts::connect(&test_database.address).await.expect("a store");
    let pool = PgPool::connect(&test_database.address).await.expect("the same server");
    passes_over(&store, async |sql| {
        sqlx::raw_sql(sql).execute(&pool).await.expect("an accident");
    })
    .await;
}

/// A proxy before the server, and the database's address through it.
async fn proxied(test_database: &TestDatabase) -> (Proxy, String) {
    let (before, after) = test_database.address.split_once('@').expect("a user");
    let (host, rest) = after.split_once('/').expect("a database");
    let proxy = Proxy::before(host.parse().expect("an address")).await.expect("a port");
    let address = format!("{before}@{}/{rest}", proxy.address());
    (proxy, address)
}

async fn postgres_takes_silence_for_an_outage() {
    let test_database = TestDatabase::postgres().await;
    let (proxy, address) = proxied(&test_database).await;
    let store = PostgresContextStore::connect(&address).await.expect("a store");
    let (draft, claim) = (draft(), RunClaim::new(secs(60)));
    store.create(&draft, Some(&claim)).await.expect("it is new");
    let proof = Proof { id: draft.id, token: claim.token };
    proxy.silence_open();
    // It would else be waited for until the end of days, and the run-lease with it. The silent connection
    // may just be on its way back to the pool, which then makes another one.
    let mut silence = None;
    for _ in 0..100 {
        silence = store.heartbeat(proof, secs(60)).await.err();
        if silence.is_some() {
            break;
        }
    }
    let error = silence.expect("nobody answers on the connection that was open");
    assert_eq!(error.code(), "store_unavailable", "{error}");
    until("a new connection is made", || async {
        store.heartbeat(proof, secs(60)).await.is_ok_and(|beat| beat.held)
    })
    .await;
}

async fn postgres_finds_a_lost_answer_by_asking_again() {
    // Whichever answer is lost: of the time, of the row, of the write, or of the making of them.
    let lost = (0..8).map(|answers| async move {
        let test_database = TestDatabase::postgres().await;
        let (proxy, address) = proxied(&test_database).await;
        let store = PostgresContextStore::connect(&address).await.expect("a store");
        let (draft, claim) = (draft(), RunClaim::new(secs(60)));
        proxy.pass_answers(answers);
        let first = store.create(&draft, Some(&claim)).await;
        proxy.pass().await.expect("it passes again");
        again(first, || store.create(&draft, Some(&claim))).await;
        let next = ContextDraft { body: "{}".to_owned(), ..draft };
        let (token, keep, used_signal) = (claim.token, None, None);
        let save = Save { draft: &next, revision: 1, token, keep, used_signal, progress: false };
        proxy.pass_answers(answers);
        let first = store.save(&save).await;
        proxy.pass().await.expect("it passes again");
        let saved = again(first, || store.save(&save)).await;
        assert_eq!(saved.revision, 2, "after {answers} answers");
        let row = store.load(next.id).await.expect("it answers").expect("it is there");
        assert_eq!((row.head.revision, &*row.body), (2, "{}"));
    });
    futures::future::join_all(lost).await;
}

/// Asks again while the answer is that the store is away.
async fn again<T, F: Future<Output = latchwork_flow::Result<T>>>(
    mut answer: latchwork_flow::Result<T>,
    ask: impl Fn() -> F,
) -> T {
    loop {
        match answer {
            Ok(out) => return out,
            Err(error) => assert_eq!(error.code(), "store_unavailable", "{error}"),
        }
        answer = ask().await;
    }
}
