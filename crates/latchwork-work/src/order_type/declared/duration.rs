//! Durations as people write them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

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
        let expected = "a duration is expected, such as \"30s\", \"10m\" or \"2h\"";
        let text = Cow::<'de, str>::deserialize(deserializer)
            .map_err(|error| serde::de::Error::custom(format_args!("{expected}: {error}")))?;
        let parsed = humantime::parse_duration(&text);
        parsed.map(DurationText).map_err(|error| {
            serde::de::Error::custom(format_args!("{expected}, and not {text:?}: {error}"))
        })
    }
}
