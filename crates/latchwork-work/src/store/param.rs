//! What goes into a statement and what comes out of it, the same for every database.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// A value of a statement. Absent values keep their type: a prepared statement has one type for each.
#[derive(Clone, Debug)]
pub(crate) enum Param {
    /// A number, or a time in microseconds.
    Int(Option<i64>),
    /// A text, a UUID or JSON.
    Text(Option<String>),
}

impl From<i64> for Param {
    fn from(number: i64) -> Self {
        Param::Int(Some(number))
    }
}

impl From<Option<i64>> for Param {
    fn from(number: Option<i64>) -> Self {
        Param::Int(number)
    }
}

impl From<&str> for Param {
    fn from(text: &str) -> Self {
        Param::Text(Some(text.to_owned()))
    }
}

impl From<String> for Param {
    fn from(text: String) -> Self {
        Param::Text(Some(text))
    }
}

impl From<Option<String>> for Param {
    fn from(text: Option<String>) -> Self {
        Param::Text(text)
    }
}

impl From<DateTime<Utc>> for Param {
    fn from(time: DateTime<Utc>) -> Self {
        time.timestamp_micros().into()
    }
}

macro_rules! ids {
    ($($id:ident),*) => {
        $(impl From<crate::$id> for Param {
            fn from(id: crate::$id) -> Self {
                id.to_string().into()
            }
        })*
    };
}

ids!(OrderId, ItemId, LeaseId, EventId);

/// The values of a statement.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::Param::from($value)),*]
    };
}

pub(crate) use params;

/// Rows as one JSON value: a statement takes any number of them in one round trip.
pub(crate) fn json(rows: &impl Serialize) -> Result<String> {
    serde_json::to_string(rows).map_err(|error| Error::damaged(format!("rows as JSON: {error}")))
}

/// One column of a row.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Text(String),
}

/// A row, read column by column in the order of the statement.
pub(crate) struct Cells {
    cells: std::vec::IntoIter<Cell>,
    column: usize,
}

impl Cells {
    pub(crate) fn new(cells: Vec<Cell>) -> Self {
        Cells { cells: cells.into_iter(), column: 0 }
    }

    fn next(&mut self) -> Result<Cell> {
        self.column += 1;
        self.cells.next().ok_or_else(|| self.wrong("it is missing"))
    }

    fn wrong(&self, what: &str) -> Error {
        Error::damaged(format!("column {} of a row: {what}", self.column))
    }

    pub(crate) fn opt_text(&mut self) -> Result<Option<String>> {
        match self.next()? {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            Cell::Int(_) => Err(self.wrong("a number stands where a text belongs")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        self.opt_text()?.ok_or_else(|| self.wrong("it is empty"))
    }

    pub(crate) fn opt_int(&mut self) -> Result<Option<i64>> {
        match self.next()? {
            Cell::Null => Ok(None),
            Cell::Int(number) => Ok(Some(number)),
            Cell::Text(_) => Err(self.wrong("a text stands where a number belongs")),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        self.opt_int()?.ok_or_else(|| self.wrong("it is empty"))
    }

    /// A number in the range of a smaller type.
    pub(crate) fn number<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let number = self.int()?;
        T::try_from(number).map_err(|_| self.wrong(&format!("{number} is out of range")))
    }

    /// The same where it may be absent.
    pub(crate) fn opt_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        let Some(number) = self.opt_int()? else { return Ok(None) };
        let read = T::try_from(number).map(Some);
        read.map_err(|_| self.wrong(&format!("{number} is out of range")))
    }

    pub(crate) fn opt_time(&mut self) -> Result<Option<DateTime<Utc>>> {
        let Some(micros) = self.opt_int()? else { return Ok(None) };
        let time = DateTime::from_timestamp_micros(micros);
        time.map(Some).ok_or_else(|| self.wrong(&format!("{micros} is no time")))
    }

    pub(crate) fn time(&mut self) -> Result<DateTime<Utc>> {
        self.opt_time()?.ok_or_else(|| self.wrong("it is empty"))
    }

    /// A name or an id.
    pub(crate) fn parse<T: FromStr<Err = Error>>(&mut self) -> Result<T> {
        let text = self.text()?;
        text.parse().map_err(|error: Error| self.wrong(&error.to_string()))
    }

    pub(crate) fn opt_parse<T: FromStr<Err = Error>>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.opt_text()? else { return Ok(None) };
        text.parse().map(Some).map_err(|error: Error| self.wrong(&error.to_string()))
    }

    pub(crate) fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.opt_text()? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| self.wrong(&error.to_string()))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.opt_json()?.ok_or_else(|| self.wrong("it is empty"))
    }
}
