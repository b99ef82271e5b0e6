//! Statements that are gathered and sent together: every way to the connection's thread and back
//! costs more than the statement does.

use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, Type};

/// Statements, of which only one may give rows. Their parameters are plain question marks.
#[derive(Default)]
pub(super) struct Script {
    text: String,
    values: SqliteArguments,
    wrong: Option<sqlx::Error>,
}

impl Script {
    /// Adds a statement, whose values are bound next.
    pub(super) fn put(&mut self, statement: &'static str) -> &mut Self {
        self.text.push_str(statement);
        self.text.push(';');
        self
    }

    pub(super) fn bind<'v, T>(&mut self, value: T) -> &mut Self
    where
        T: Encode<'v, Sqlite> + Type<Sqlite>,
    {
        if let Err(error) = self.values.add(value) {
            self.wrong = Some(sqlx::Error::Encode(error));
        }
        self
    }

    /// Runs what was gathered, and begins anew.
    pub(super) async fn run(&mut self, on: &mut SqliteConnection) -> sqlx::Result<Vec<SqliteRow>> {
        let Script { text, values, wrong } = std::mem::take(self);
        match wrong {
            Some(error) => Err(error),
            // Made of constants only.
            None => sqlx::query_with(AssertSqlSafe(text), values).fetch_all(on).await,
        }
    }
}
