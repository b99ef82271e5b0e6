//! A context as columns: the same in every database, only their statements differ.

use chrono::{DateTime, Utc};
use latchwork_lock::provider::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{ColumnIndex, Database, Decode, Row, Type};
use std::time::Duration;

use crate::store::{
    CancelRequest, ContextHead, ReceivedSignal, RunLease, StoredContext, Unreadable, Waiting,
};
use crate::{ContextSummary, Error, Result, Status, TransitionId};

/// Each column of a head is named once: the macro makes the row, and how the drivers read and bind it.
macro_rules! columns {
    ($($name:ident: $type:ty,)*) => {
        /// A row in the order of the columns: the head's, then the body. Times are unix microseconds.
        pub(super) struct Columns {
            $($name: $type,)*
            body: String,
        }

        impl Columns {
            /// Hands them to a statement; without the body where that stays as it is.
            #[cfg(feature = "postgres")]
            pub(super) fn bind<A>(self, to: &mut A, with_body: bool) -> Result<(), crate::BoxError>
            where
                A: sqlx::Arguments,
                for<'q> String: sqlx::Encode<'q, A::Database> + Type<A::Database>,
                for<'q> Option<String>: sqlx::Encode<'q, A::Database> + Type<A::Database>,
                for<'q> i64: sqlx::Encode<'q, A::Database> + Type<A::Database>,
                for<'q> Option<i64>: sqlx::Encode<'q, A::Database> + Type<A::Database>,
                for<'q> bool: sqlx::Encode<'q, A::Database> + Type<A::Database>,
            {
                $(to.add(self.$name)?;)*
                if with_body {
                    to.add(self.body)?;
                }
                Ok(())
            }

            /// The columns of a row.
            pub(super) fn read<R: Row>(row: &R) -> sqlx::Result<Self>
            where
                usize: ColumnIndex<R>,
                for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
                for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
                for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
            {
                let mut at = 0..;
                let mut next = || at.next().unwrap_or(usize::MAX);
                Ok(Columns { $($name: row.try_get(next())?,)* body: row.try_get(next())? })
            }

            /// Hands the head to a statement of a connection without a driver's thread, and gives the
            /// number of the next parameter.
            #[cfg(feature = "sqlite")]
            pub(super) fn bind_direct(
                &self,
                to: &mut rusqlite::Statement<'_>,
            ) -> rusqlite::Result<usize> {
                let mut at = 1;
                $(
                    to.raw_bind_parameter(at, &self.$name)?;
                    at += 1;
                )*
                Ok(at)
            }

            /// The columns of a row of such a connection.
            #[cfg(feature = "sqlite")]
            pub(super) fn read_direct(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                let mut at = 0..;
                let mut next = || at.next().unwrap_or(usize::MAX);
                Ok(Columns { $($name: row.get(next())?,)* body: row.get(next())? })
            }
        }
    };
}

columns! {
    id: String,
    machine: String,
    entity: Option<String>,
    status: String,
    revision: i64,
    details: String,
    wake_at: Option<i64>,
    signal: Option<String>,
    timeout_at: Option<i64>,
    renew_at: Option<i64>,
    holds_lock: bool,
    run_token: Option<String>,
    run_runner: Option<String>,
    run_expires_at: Option<i64>,
    signals: String,
    cancel_reason: Option<String>,
    cancel_at: Option<i64>,
    due_at: Option<i64>,
    created_at: i64,
    updated_at: i64,
    attempts: i64,
    last_error: Option<String>,
    retry_at: Option<i64>,
    quarantined_at: Option<i64>,
    woken_at: Option<i64>,
}

/// How many there are: what a statement asks for besides comes after them.
pub(super) const COUNT: usize = 26;

/// What came and was not yet used, as JSON in a column.
#[derive(Serialize, Deserialize)]
struct Signal {
    sequence: u64,
    name: String,
    payload: Value,
    at: i64,
}

impl Columns {
    /// The columns of a context.
    pub(super) fn of(stored: &StoredContext) -> Result<Self> {
        let head = &stored.head;
        let waiting = head.waiting.clone().unwrap_or_default();
        let (run, cancel) = (head.run.as_ref(), head.cancel.as_ref());
        Ok(Columns {
            id: head.id.to_string(),
            machine: head.machine.clone(),
            entity: head.entity.clone(),
            status: head.status.name().to_owned(),
            revision: number(head.revision),
            details: head.details.clone(),
            wake_at: waiting.wake_at.map(micros),
            signal: waiting.signal,
            timeout_at: waiting.timeout_at.map(micros),
            renew_at: waiting.renew_at.map(micros),
            holds_lock: head.holds_lock,
            run_token: run.map(|run| token_text(run.token)),
            run_runner: run.map(|run| run.runner.clone()),
            run_expires_at: run.map(|run| micros(run.expires_at)),
            signals: signals_text(&head.signals)?,
            cancel_reason: cancel.map(|cancel| cancel.reason.clone()),
            cancel_at: cancel.map(|cancel| micros(cancel.at)),
            due_at: head.due_at.map(micros),
            created_at: micros(head.created_at),
            updated_at: micros(head.updated_at),
            attempts: head.attempts.into(),
            last_error: head.last_error.clone(),
            retry_at: head.retry_at.map(micros),
            quarantined_at: head.quarantined_at.map(micros),
            woken_at: head.woken_at.map(micros),
            body: stored.body.clone(),
        })
    }

    /// The context of these columns.
    ///
    /// # Errors
    /// [`CorruptContext`](crate::ErrorKind::CorruptContext) for what no program of ours has written.
    pub(super) fn stored(self) -> Result<StoredContext> {
        let corrupt = Corrupt(&self.id);
        let id: TransitionId = self.id.parse().map_err(|_| corrupt.column("id"))?;
        let waiting = Waiting {
            wake_at: corrupt.time("wake_at", self.wake_at)?,
            signal: self.signal,
            timeout_at: corrupt.time("timeout_at", self.timeout_at)?,
            renew_at: corrupt.time("renew_at", self.renew_at)?,
        };
        let run = match (self.run_token, self.run_expires_at) {
            (Some(token), expires_at) => Some(RunLease {
                token: token_of(&token).ok_or_else(|| corrupt.column("run_token"))?,
                runner: self.run_runner.unwrap_or_default(),
                expires_at: corrupt.needed("run_expires_at", expires_at)?,
            }),
            (None, _) => None,
        };
        let cancel = match self.cancel_reason {
            Some(reason) => {
                Some(CancelRequest { reason, at: corrupt.needed("cancel_at", self.cancel_at)? })
            }
            None => None,
        };
        let head = ContextHead {
            id,
            status: Status::of_name(&self.status).ok_or_else(|| corrupt.column("status"))?,
            revision: u64::try_from(self.revision).map_err(|_| corrupt.column("revision"))?,
            // One that waits for nothing is as good as none.
            waiting: Some(waiting).filter(|waiting| *waiting != Waiting::default()),
            holds_lock: self.holds_lock,
            run,
            signals: signals_of(&self.signals).ok_or_else(|| corrupt.column("signals"))?,
            cancel,
            // More than fit are more than enough.
            attempts: u32::try_from(self.attempts.max(0)).unwrap_or(u32::MAX),
            last_error: self.last_error,
            retry_at: corrupt.time("retry_at", self.retry_at)?,
            quarantined_at: corrupt.time("quarantined_at", self.quarantined_at)?,
            woken_at: corrupt.time("woken_at", self.woken_at)?,
            due_at: corrupt.time("due_at", self.due_at)?,
            created_at: corrupt.needed("created_at", Some(self.created_at))?,
            updated_at: corrupt.needed("updated_at", Some(self.updated_at))?,
            machine: self.machine,
            entity: self.entity,
            details: self.details,
        };
        Ok(StoredContext { head, body: self.body })
    }
}

/// Names the row that cannot be read.
struct Corrupt<'a>(&'a str);

impl Corrupt<'_> {
    fn column(&self, name: &str) -> Error {
        Error::corrupt_context(format!(
            "the column {name} of the row {:?} of latchwork_flow_context; nothing was changed",
            self.0
        ))
    }

    fn time(&self, name: &str, at: Option<i64>) -> Result<Option<DateTime<Utc>>> {
        at.map(|at| time(at).ok_or_else(|| self.column(name))).transpose()
    }

    fn needed(&self, name: &str, at: Option<i64>) -> Result<DateTime<Utc>> {
        self.time(name, at)?.ok_or_else(|| self.column(name))
    }
}

/// A time as it is stored. What is finer than a microsecond is cut off.
pub(super) fn micros(at: DateTime<Utc>) -> i64 {
    at.timestamp_micros()
}

/// A stored time.
pub(super) fn time(micros: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros)
}

/// A span that can be added to any time without an overflow.
pub(super) fn span(span: Duration) -> i64 {
    const LONGEST: i64 = i64::MAX / 4;
    i64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

/// A stored count.
pub(super) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The secret of a run-lease as it is stored.
pub(super) fn token_text(token: Token) -> String {
    format!("{:032x}", token.expose())
}

fn token_of(text: &str) -> Option<Token> {
    u128::from_str_radix(text, 16).ok().map(Token::from_exposed)
}

fn signals_text(signals: &[ReceivedSignal]) -> Result<String> {
    if signals.is_empty() {
        return Ok("[]".to_owned());
    }
    let wire = signals.iter().map(|signal| Signal {
        sequence: signal.sequence,
        name: signal.name.clone(),
        payload: signal.payload.clone(),
        at: micros(signal.at),
    });
    let wire: Vec<Signal> = wire.collect();
    serde_json::to_string(&wire)
        .map_err(|e| Error::invalid_argument("signal", format!("it cannot be stored: {e}")))
}

fn signals_of(text: &str) -> Option<Vec<ReceivedSignal>> {
    if text == "[]" {
        return Some(Vec::new());
    }
    let wire: Vec<Signal> = serde_json::from_str(text).ok()?;
    let signals = wire.into_iter().map(|signal| {
        let Signal { sequence, name, payload, at } = signal;
        Some(ReceivedSignal { sequence, name, payload, at: time(at)? })
    });
    signals.collect()
}

/// One row of a listing; one that cannot be read must not hide the others.
pub(super) fn summary<R: Row>(row: &R) -> Result<ContextSummary, Unreadable>
where
    usize: ColumnIndex<R>,
    R::Database: Database,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
{
    let reason = match Columns::read(row) {
        Ok(columns) => match columns.stored() {
            Ok(stored) => return Ok(stored.head.summary()),
            Err(error) => error.to_string(),
        },
        Err(error) => format!("a column has another type: {error}"),
    };
    Err(Unreadable { id: row.try_get(0).unwrap_or_default(), reason })
}

/// A type alias would need the bounds again; this is what a store asks of its row.
pub(super) fn stored<R: Row>(
    row: &R,
    wrong: impl FnOnce(sqlx::Error) -> Error,
) -> Result<StoredContext>
where
    usize: ColumnIndex<R>,
    R::Database: Database,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
{
    Columns::read(row).map_err(wrong)?.stored()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ContextDraft, RunClaim};
    use serde_json::json;

    fn full() -> StoredContext {
        let now = time(1_767_225_600_123_456).expect("in range");
        let draft = ContextDraft {
            id: TransitionId::new(now),
            machine: "orders".to_owned(),
            entity: Some("order 1".to_owned()),
            status: Status::Paused,
            body: "{}".to_owned(),
            details: "{}".to_owned(),
            waiting: Some(Waiting {
                wake_at: Some(now),
                signal: Some("go".to_owned()),
                timeout_at: Some(DateTime::<Utc>::MAX_UTC),
                renew_at: None,
            }),
            holds_lock: true,
        };
        let claim = RunClaim::new(Duration::from_secs(1));
        let mut stored = StoredContext::create(&draft, Some(&claim), now);
        stored.cancel("why", now).expect("it runs");
        stored.signal("go", &json!({"a": [1, "\u{0}"]}), now).expect("it is not over");
        stored.head.last_error = Some("away".to_owned());
        stored.head.retry_at = Some(now);
        stored.head.quarantined_at = Some(now);
        stored.head.woken_at = Some(now);
        stored
    }

    #[test]
    fn columns_lose_nothing() {
        let mut stored = full();
        let back = Columns::of(&stored).expect("it can be stored").stored().expect("it is ours");
        // Finer than a microsecond is cut off.
        let waiting = stored.head.waiting.as_mut().expect("it waits");
        waiting.timeout_at = time(micros(DateTime::<Utc>::MAX_UTC));
        assert_eq!(back, stored);
    }

    #[test]
    fn a_damaged_column_is_named() {
        type Damage = fn(&mut Columns);
        let damages: [(&str, Damage); 6] = [
            ("id", |c| c.id = "x".to_owned()),
            ("status", |c| c.status = "lost".to_owned()),
            ("revision", |c| c.revision = -1),
            ("run_token", |c| c.run_token = Some("secret".to_owned())),
            ("signals", |c| c.signals = "[{}]".to_owned()),
            ("updated_at", |c| c.updated_at = i64::MIN),
        ];
        for (name, damage) in damages {
            let mut columns = Columns::of(&full()).expect("it can be stored");
            damage(&mut columns);
            let error = columns.stored().expect_err(name);
            assert_eq!(error.code(), "corrupt_context");
            let told = error.to_string();
            assert!(told.contains(name) && !told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn spans_do_not_overflow() {
        let latest = micros(DateTime::<Utc>::MAX_UTC) / 4;
        assert!(latest.checked_add(span(Duration::MAX)).is_some());
        assert_eq!(span(Duration::from_millis(1)), 1_000);
    }
}
