//! Completed orders by the million: copies of one that was really completed, made by the database itself.

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

/// What an order leaves behind, with the columns that name it or one of its items; their ids are those of the
/// original with other first digits. `seq` and `position` number the trail.
const TABLES: [(&str, &[&str]); 10] = [
    ("order", &["id"]),
    ("payload", &["order_id"]),
    ("item", &["id", "order_id"]),
    ("input", &["item_id"]),
    ("result", &["item_id"]),
    ("review", &["order_id"]),
    ("approval", &["order_id"]),
    ("applied", &["order_id"]),
    ("chain", &["order_id"]),
    ("event", &["id", "order_id", "item_id"]),
];

enum Database {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Database {
    async fn open(url: &str) -> Self {
        match url.starts_with("sqlite") {
            true => Database::Sqlite(SqliteConnection::connect(url).await.expect("connected")),
            false => Database::Postgres(PgConnection::connect(url).await.expect("connected")),
        }
    }

    async fn run(&mut self, sql: String) {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Database::Sqlite(connection) => {
                statement.execute(connection).await.expect("done");
            }
            Database::Postgres(connection) => {
                statement.execute(connection).await.expect("done");
            }
        }
    }

    /// The columns of a table, but the number that the database gives.
    async fn columns(&mut self, table: &str) -> Vec<String> {
        let names: Vec<String> = match self {
            Database::Sqlite(connection) => {
                let sql = format!("SELECT name FROM pragma_table_info('latchwork_work_{table}')");
                let rows = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await;
                rows.expect("columns")
            }
            Database::Postgres(connection) => {
                let sql = format!(
                    "SELECT column_name::text FROM information_schema.columns WHERE \
                     table_schema = current_schema() AND table_name = 'latchwork_work_{table}'"
                );
                let rows = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await;
                rows.expect("columns")
            }
        };
        names.into_iter().filter(|name| name != "seq" || table != "event").collect()
    }
}

/// Copies so many times the order with this id, which must be completed, and its events the last that are
/// sealed. Three of them are copied: a million orders have some fifteen million in all.
pub(crate) async fn copy(url: &str, order: &str, copies: u64) {
    let mut database = Database::open(url).await;
    let sqlite = matches!(database, Database::Sqlite(_));
    let numbers = match sqlite {
        true => format!(
            "(WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < {copies}) \
             SELECT n FROM up) AS n"
        ),
        false => format!("generate_series(1, {copies}) AS n(n)"),
    };
    for (table, ids) in TABLES {
        let columns = database.columns(table).await;
        let value = |column: &String| match column.as_str() {
            "position" => "t.position + 3 * n.n".to_owned(),
            id if ids.contains(&id) && sqlite => {
                format!("printf('%08x', n.n) || substr(t.{id}, 9)")
            }
            id if ids.contains(&id) => {
                format!("(lpad(to_hex(n.n), 8, '0') || substr(t.{id}::text, 9))::uuid")
            }
            other => format!("t.{other}"),
        };
        let values: Vec<_> = columns.iter().map(value).collect();
        let owner = match table {
            "order" => format!("t.id = '{order}'"),
            "input" | "result" => format!(
                "t.item_id IN (SELECT id FROM latchwork_work_item WHERE order_id = '{order}')"
            ),
            "event" => format!(
                "t.order_id = '{order}' AND t.position > \
                 (SELECT max(position) - 3 FROM latchwork_work_event)"
            ),
            _ => format!("t.order_id = '{order}'"),
        };
        let (columns, values) = (columns.join(", "), values.join(", "));
        let sql = format!(
            "INSERT INTO latchwork_work_{table} ({columns}) SELECT {values} \
             FROM latchwork_work_{table} AS t, {numbers} WHERE {owner}"
        );
        database.run(sql).await;
    }
    let end = "UPDATE latchwork_work_sealer SET position = \
        (SELECT max(position) FROM latchwork_work_event)";
    database.run(end.to_owned()).await;
    database.run("ANALYZE".to_owned()).await;
}
