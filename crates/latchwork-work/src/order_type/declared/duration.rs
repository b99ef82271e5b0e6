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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Duration, String> {
        let json = serde_json::Value::from(text).to_string();
        let read = serde_json::from_str::<DurationText>(&json);
        read.map(|read| read.0).map_err(|error| error.to_string())
    }

    proptest! {
        #[test]
        fn w12_every_duration_reads_back(seconds in 0_u64..4_000_000_000, nanos in 0_u32..1_000_000_000) {
            let span = Duration::new(seconds, nanos);
            prop_assert_eq!(read(&DurationText(span).to_string()), Ok(span));
        }

        #[test]
        fn w12_any_text_is_a_duration_or_an_error_with_an_example(
            text in prop_oneof!["\\PC{0,20}", "[0-9]{0,22}[a-z]{0,6} ?[0-9]{0,4}(s|ms|h)?"],
        ) {
            if let Err(error) = read(&text) {
                prop_assert!(error.contains("\"30s\""), "{error}");
            }
        }
    }
}
