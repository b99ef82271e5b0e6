use super::*;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchwork_sql::sqlite::Options;
use std::sync::Arc;
use std::sync::mpsc;

const DURING: &str = "testing";

struct Fixture {
    writer: Arc<Writer>,
    sqlite: Sqlite,
    _directory: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options::at(directory.path().join("a.db"));
        let sqlite = Sqlite::open(&options).await.expect("opened");
        let made = "CREATE TABLE latchwork_changes (n INTEGER NOT NULL PRIMARY KEY)";
        sqlx::raw_sql(made).execute(sqlite.writer()).await.expect("a table");
        let direct = sqlite.direct().await.expect("a file");
        let writer = Arc::new(Writer::new(sqlite.clone(), direct));
        Fixture { writer, sqlite, _directory: directory }
    }

    /// Occupies the thread until the returned sender is dropped; all that comes meanwhile is the
    /// next batch.
    fn occupy(&self) -> (BoxFuture<'static, Result<()>>, mpsc::Sender<()>) {
        let (go, gone) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let writer = self.writer.clone();
        let mut occupied = async move {
            let wait = move |_: &Connection| {
                let _ = begin.send(());
                let _ = gone.recv();
                Ok(())
            };
            writer.change(DURING, wait).await
        }
        .boxed();
        assert!((&mut occupied).now_or_never().is_none());
        begun.recv().expect("it begins");
        (occupied, go)
    }

    /// Asks for a row.
    fn insert(&self, n: i64) -> BoxFuture<'static, Result<usize>> {
        let writer = self.writer.clone();
        let mut asked = async move {
            let insert = move |on: &Connection| {
                Ok(on.execute("INSERT INTO latchwork_changes (n) VALUES (?1)", [n])?)
            };
            writer.change(DURING, insert).await
        }
        .boxed();
        assert!((&mut asked).now_or_never().is_none());
        asked
    }

    async fn rows(&self) -> Vec<i64> {
        let rows = sqlx::query_scalar("SELECT n FROM latchwork_changes ORDER BY n");
        rows.fetch_all(self.sqlite.readers()).await.expect("rows")
    }
}

#[tokio::test]
async fn a_refused_change_hinders_no_other() {
    let fixture = Fixture::new().await;
    let (occupied, go) = fixture.occupy();
    let first = fixture.insert(1);
    let refusal = |_: &Connection| -> Result<(), Stop> {
        Err(Error::invalid_argument("change", "it is refused").into())
    };
    let mut refused = fixture.writer.change(DURING, refusal).boxed();
    assert!((&mut refused).now_or_never().is_none());
    let second = fixture.insert(2);
    drop(go);
    occupied.await.expect("made");
    assert_eq!(first.await.expect("made"), 1);
    assert_eq!(refused.await.expect_err("refused").code(), "invalid_argument");
    assert_eq!(second.await.expect("made"), 1);
    assert_eq!(fixture.rows().await, [1, 2]);
}

#[tokio::test]
async fn a_failure_is_of_the_change_that_is_at_fault() {
    let fixture = Fixture::new().await;
    fixture.insert(2).await.expect("made");
    let (occupied, go) = fixture.occupy();
    let (first, twice, third) = (fixture.insert(1), fixture.insert(2), fixture.insert(3));
    drop(go);
    occupied.await.expect("made");
    assert_eq!(first.await.expect("made again, alone"), 1);
    assert_eq!(twice.await.expect_err("it is there").code(), "store_backend");
    assert_eq!(third.await.expect("made"), 1);
    assert_eq!(fixture.rows().await, [1, 2, 3]);
}

#[tokio::test]
async fn what_nobody_waits_for_is_not_begun() {
    let fixture = Fixture::new().await;
    let (occupied, go) = fixture.occupy();
    let dropped = fixture.insert(1);
    let kept = fixture.insert(2);
    drop(dropped);
    drop(go);
    occupied.await.expect("made");
    kept.await.expect("made");
    assert_eq!(fixture.rows().await, [2]);
}

#[tokio::test]
async fn closing_makes_what_was_requested_and_nothing_after() {
    let fixture = Fixture::new().await;
    let (occupied, go) = fixture.occupy();
    let requested = fixture.insert(1);
    let mut closing = fixture.writer.close().boxed();
    assert!((&mut closing).now_or_never().is_none());
    drop(go);
    occupied.await.expect("made");
    requested.await.expect("made");
    closing.await;
    let late = fixture.writer.change(DURING, |_| Ok(())).await;
    assert_eq!(late.expect_err("it is closed").code(), "store_unavailable");
    assert_eq!(fixture.rows().await, [1]);
}

#[tokio::test]
async fn another_process_that_writes_is_waited_for() {
    let fixture = Fixture::new().await;
    let writing = fixture.sqlite.begin().await.expect("begun");
    let asked = fixture.insert(1);
    tokio::task::yield_now().await;
    writing.commit().await.expect("committed");
    assert_eq!(asked.await.expect("made after it"), 1);
}
