//! Durations as people write them.

use std::fmt;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in a declaration: `"30s"`, `"10m"`, `"1h 30m"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationText(pub Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText)
    }
}

struct FromText;

impl Visitor<'_> for FromText {
    type Value = DurationText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"30s\", \"10m\" or \"2h\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DurationText, E> {
        let parsed = humantime::parse_duration(text);
        parsed.map(DurationText).map_err(|error| {
            E::custom(format_args!("a duration such as \"30s\", \"10m\" or \"2h\" is expected, and not {text:?}: {error}"))
        })
    }
}
