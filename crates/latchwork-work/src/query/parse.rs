//! Reading the grammar.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::{Comparison, MAX_PAGE_SIZE, OrderFilter, OrderQuery, Sort, SortField, TimeField};
use crate::{Error, ErrorKind, Result};

/// The names of filters.
const FILTERS: &[&str] = &[
    "id",
    "state",
    "type",
    "requested_by_type",
    "requested_by_id",
    "items.state",
    "priority",
    "created_at",
    "last_transitioned_at",
    "applied_at",
    "completed_at",
    "meta",
    "has_available_items",
];

/// The filters that may stand without `filter[…]`.
const PLAIN: &[&str] = &["id", "state", "type", "requested_by_type", "requested_by_id"];

/// So many values of one filter, at most.
const MAX_VALUES: usize = 100;

impl OrderQuery {
    /// Reads pairs of names and values, as in the query of a URL.
    ///
    /// # Errors
    /// [`UnknownName`](ErrorKind::UnknownName) for a filter, sort or include that does not exist, and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value that cannot be read.
    pub fn parse<N: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self> {
        let mut query = OrderQuery::default();
        for (name, value) in pairs {
            query.set(name.as_ref(), value.as_ref())?;
        }
        if let Some(after) = &query.after {
            after.check(&query.sort)?;
        }
        Ok(query)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let filter = name.strip_prefix("filter[").and_then(|rest| rest.strip_suffix(']'));
        match name {
            _ if filter.is_some() || PLAIN.contains(&name) => {
                self.filters.push(filter_of(filter.unwrap_or(name), value)?);
            }
            "include" => self.include = each("include", value)?,
            "sort" => {
                let keys = values("sort", value)?.into_iter().map(sort_of);
                self.sort = keys.collect::<Result<_>>()?;
                for (at, key) in self.sort.iter().enumerate() {
                    if self.sort[..at].iter().any(|other| other.field == key.field) {
                        return Err(invalid("sort", format!("{} stands there twice", key.field)));
                    }
                }
            }
            "page[size]" | "limit" | "per_page" => self.page_size = size_of(value)?,
            "page[cursor]" => self.after = Some(value.parse()?),
            "page[number]" => {
                let reason = "pages are not numbered: rows come and go between two requests; pass \
                              the `next` of a page as `page[cursor]`";
                return Err(invalid("page[number]", reason.to_owned()));
            }
            _ => {
                let known = ["filter[…]", "include", "sort", "page[size]", "page[cursor]"];
                return Err(unknown("parameter", name, known.iter().chain(PLAIN)));
            }
        }
        Ok(())
    }
}

fn filter_of(name: &str, value: &str) -> Result<OrderFilter> {
    if let Ok(field) = name.parse::<TimeField>() {
        let (comparison, text) = compared(value);
        let at = DateTime::parse_from_rfc3339(text).map_err(|_| {
            let reason = format!("{text:?} is not a time such as 2026-01-31T12:00:00Z");
            invalid(field.as_str(), reason)
        })?;
        return Ok(OrderFilter::Time(field, comparison, at.with_timezone(&Utc)));
    }
    Ok(match name {
        "id" => OrderFilter::Id(each("id", value)?),
        "state" => OrderFilter::State(each("state", value)?),
        "type" => OrderFilter::Type(texts("type", value)?),
        "requested_by_type" => OrderFilter::RequestedByType(each("requested_by_type", value)?),
        "requested_by_id" => OrderFilter::RequestedById(texts("requested_by_id", value)?),
        "items.state" => OrderFilter::ItemState(each("items.state", value)?),
        "priority" => {
            let (comparison, text) = compared(value);
            let number = text.parse().map_err(|_| {
                invalid("priority", format!("{text:?} is not a number such as 5 or >=5"))
            })?;
            OrderFilter::Priority(comparison, number)
        }
        "meta" => OrderFilter::Meta(meta_of(value)?),
        "has_available_items" => OrderFilter::HasAvailableItems(value.parse().map_err(|_| {
            invalid("has_available_items", format!("{value:?} is neither true nor false"))
        })?),
        _ => return Err(unknown("filter", name, FILTERS.iter())),
    })
}

/// `key:value`, with a number, true, false or null as such; or a JSON object.
fn meta_of(value: &str) -> Result<Map<String, Value>> {
    if value.trim_start().starts_with('{') {
        return serde_json::from_str(value)
            .map_err(|error| invalid("meta", format!("it is not a JSON object: {error}")));
    }
    let Some((key, text)) = value.split_once(':') else {
        let reason = format!("{value:?} is neither `key:value` nor a JSON object");
        return Err(invalid("meta", reason));
    };
    let simple = serde_json::from_str::<Value>(text)
        .ok()
        .filter(|value| matches!(value, Value::Number(_) | Value::Bool(_) | Value::Null));
    let value = simple.unwrap_or_else(|| Value::String(text.to_owned()));
    Ok(Map::from_iter([(key.to_owned(), value)]))
}

fn sort_of(text: &str) -> Result<Sort> {
    let (descending, name) = match text.strip_prefix('-') {
        Some(name) => (true, name),
        None => (false, text),
    };
    Ok(Sort { field: name.parse::<SortField>()?, descending })
}

pub(super) fn size_of(value: &str) -> Result<u32> {
    match value.parse() {
        Ok(size @ 1..=MAX_PAGE_SIZE) => Ok(size),
        _ => {
            let reason = format!("{value:?} is not a number from 1 to {MAX_PAGE_SIZE}");
            Err(invalid("page[size]", reason))
        }
    }
}

fn compared(value: &str) -> (Comparison, &str) {
    // The longer signs first: `>=5` is not `>` and `=5`.
    let signs = [">=", "<=", "!=", ">", "<", "="];
    let sign = signs.into_iter().find(|sign| value.starts_with(sign));
    let comparison = sign.and_then(|sign| sign.parse().ok()).unwrap_or(Comparison::Equal);
    (comparison, value[sign.map_or(0, str::len)..].trim())
}

fn values<'a>(name: &'static str, value: &'a str) -> Result<Vec<&'a str>> {
    let values: Vec<_> = value.split(',').map(str::trim).collect();
    if values.iter().any(|value| value.is_empty()) {
        return Err(invalid(name, "a value is empty".to_owned()));
    }
    if values.len() > MAX_VALUES {
        let reason = format!("it has {} values, and {MAX_VALUES} are allowed", values.len());
        return Err(invalid(name, reason));
    }
    Ok(values)
}

pub(super) fn each<T: FromStr<Err = Error>>(name: &'static str, value: &str) -> Result<Vec<T>> {
    values(name, value)?.into_iter().map(str::parse).collect()
}

pub(super) fn texts(name: &'static str, value: &str) -> Result<Vec<String>> {
    Ok(values(name, value)?.into_iter().map(str::to_owned).collect())
}

pub(super) fn invalid(name: &'static str, reason: String) -> Error {
    ErrorKind::InvalidArgument { name, reason }.into()
}

pub(super) fn unknown<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a &'static str>,
) -> Error {
    let known = known.copied().collect();
    ErrorKind::UnknownName { what, name: name.to_owned(), known }.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Cursor, ItemCursor, ItemQuery};
    use super::*;
    use crate::{ItemState, OrderId, OrderState};

    fn parse(text: &str) -> Result<OrderQuery> {
        OrderQuery::parse(text.split('&').filter_map(|pair| pair.split_once('~')))
    }

    fn filters(text: &str) -> Vec<OrderFilter> {
        parse(text).expect("it reads").filters
    }

    #[test]
    fn w13_every_filter_reads() {
        let states = vec![OrderState::Queued, OrderState::Failed];
        assert_eq!(filters("filter[state]~queued,failed"), [OrderFilter::State(states.clone())]);
        assert_eq!(filters("state~queued, failed"), [OrderFilter::State(states)]);
        let items = OrderFilter::ItemState(vec![ItemState::Leased]);
        assert_eq!(filters("filter[items.state]~leased"), [items]);
        for (text, comparison, number) in [
            ("5", Comparison::Equal, 5),
            ("=5", Comparison::Equal, 5),
            ("!=5", Comparison::NotEqual, 5),
            (">=5", Comparison::GreaterOrEqual, 5),
            ("<-5", Comparison::Less, -5),
            ("<= 7", Comparison::LessOrEqual, 7),
        ] {
            let expected = OrderFilter::Priority(comparison, number);
            assert_eq!(filters(&format!("filter[priority]~{text}")), [expected]);
        }
        let time = filters("filter[created_at]~>2026-01-31T12:00:00+01:00");
        let at = DateTime::from_timestamp(1_769_857_200, 0).expect("a time");
        let expected = OrderFilter::Time(TimeField::CreatedAt, Comparison::Greater, at);
        assert_eq!(time, [expected]);
        let meta = |text: &str| filters(&format!("filter[meta]~{text}")).remove(0);
        let of = |value: Value| {
            let Value::Object(map) = value else { panic!("an object") };
            OrderFilter::Meta(map)
        };
        assert_eq!(meta("tenant:7"), of(serde_json::json!({"tenant": 7})));
        assert_eq!(meta("url:http://x"), of(serde_json::json!({"url": "http://x"})));
        assert_eq!(meta(r#"{"a":{"b":1}}"#), of(serde_json::json!({"a": {"b": 1}})));
        let available = [OrderFilter::HasAvailableItems(true)];
        assert_eq!(filters("filter[has_available_items]~true"), available);
    }

    #[test]
    fn w13_unknown_names_are_errors_that_list_the_known() {
        for (text, lists) in [
            ("filter[stat]~queued", "items.state"),
            ("filter[state]~queud", "checked_out"),
            ("sort~-age", "last_transitioned_at"),
            ("include~parts", "eventsCount"),
            ("colour~red", "page[cursor]"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.code(), "unknown_name", "{error}");
            assert!(error.to_string().contains(lists), "{error}");
        }
    }

    #[test]
    fn w13_wrong_values_say_what_is_right() {
        for (text, says) in [
            ("filter[priority]~high", ">=5"),
            ("filter[created_at]~yesterday", "2026-01-31"),
            ("filter[meta]~tenant", "key:value"),
            ("filter[has_available_items]~yes", "true"),
            ("filter[id]~7", "UUID"),
            ("page[size]~0", "1 to 100"),
            ("limit~101", "1 to 100"),
            ("page[number]~2", "page[cursor]"),
            ("page[cursor]~xyz", "next"),
            ("state~queued,,failed", "empty"),
            ("sort~priority,-priority", "twice"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.code(), "invalid_argument", "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn w13_a_cursor_reads_back_and_belongs_to_its_sorting() {
        let query = parse("sort~-priority,created_at&page[size]~10").expect("it reads");
        let id = OrderId::from_uuid(uuid::Uuid::from_u128(7));
        let cursor = Cursor::new(&query.sort, vec![Some(3), Some(17)], id);
        let again = parse(&format!("sort~-priority,created_at&page[cursor]~{cursor}"));
        assert_eq!(again.expect("it reads").after, Some(cursor.clone()));
        let first = parse(&format!("page[cursor]~{cursor}&sort~-priority,created_at"));
        assert_eq!(first.expect("in any order").after, Some(cursor.clone()));
        let error = parse(&format!("sort~priority&page[cursor]~{cursor}")).expect_err("another");
        assert!(error.to_string().contains("sorted by"), "{error}");
    }

    /// Names of the grammar, and others.
    fn name() -> impl Strategy<Value = String> {
        let known = [
            "filter[id]",
            "state",
            "filter[type]",
            "filter[items.state]",
            "filter[priority]",
            "filter[created_at]",
            "filter[meta]",
            "filter[has_available_items]",
            "include",
            "sort",
            "page[size]",
            "page[cursor]",
            "page[number]",
            "limit",
        ];
        prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => "\\PC{0,12}"]
    }

    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            "\\PC{0,20}",
            "(queued|failed|-?priority|-?created_at|items|true|[<>=!]{0,2}-?[0-9]{1,20})(,[a-z]{0,6})?",
            "[<>=!]{0,2}[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})",
            "[a-z]{0,3}:[\\[{\"0-9a-z}\\]]{0,8}",
        ]
    }

    proptest! {
        #[test]
        fn w13_any_pairs_are_a_query_or_an_error_that_names_what_is_wrong(
            pairs in prop::collection::vec((name(), value()), 0..5),
        ) {
            match OrderQuery::parse(pairs.iter().map(|(name, value)| (name, value))) {
                Ok(query) => prop_assert!((1..=100).contains(&query.page_size)),
                Err(error) => {
                    prop_assert!(["unknown_name", "invalid_argument"].contains(&error.code()), "{error}");
                }
            }
            for refused in [
                ItemQuery::parse(pairs.iter().map(|(name, value)| (name, value))).err(),
            ].into_iter().flatten() {
                prop_assert!(["unknown_name", "invalid_argument"].contains(&refused.code()), "{refused}");
            }
        }

        #[test]
        fn w13_every_cursor_reads_back_and_no_other_text_is_one(
            keys in prop::collection::vec(prop::option::of(any::<i64>()), 0..4),
            id in any::<u128>(),
            seq in any::<u32>(),
            text in "[A-Za-z0-9_.-]{0,60}",
        ) {
            let order_id = OrderId::from_uuid(uuid::Uuid::from_u128(id));
            let sort = parse("sort~-priority,created_at").expect("it reads").sort;
            let cursor = Cursor::new(&sort, keys, order_id);
            let written = cursor.to_string();
            prop_assert_eq!(written.parse::<Cursor>().expect("it reads back"), cursor);
            let cursor = ItemCursor { order_id, seq };
            prop_assert_eq!(cursor.to_string().parse::<ItemCursor>().expect("it reads back"), cursor);
            for error in [text.parse::<Cursor>().err(), text.parse::<ItemCursor>().err()] {
                prop_assert!(error.is_none_or(|error| error.code() == "invalid_argument"));
            }
            // Cut anywhere, it is another place or none, and never a panic.
            for end in 0..written.len() {
                drop(written[..end].parse::<Cursor>());
            }
        }
    }
}
