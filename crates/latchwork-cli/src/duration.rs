//! Spans of time, as people write and read them.

use std::time::Duration;

/// Reads `30s`, `1h30m`, `500ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 30s, 500ms or 1h30m"))
}

/// Short enough for a message: two units at most, no more exact than anybody needs.
pub(crate) fn show(span: Duration) -> String {
    let seconds = span.as_secs();
    let whole = match seconds {
        0 => return format!("{}ms", span.as_millis()),
        1..10 => return trim(format!("{:.1}", span.as_secs_f64())) + "s",
        10..60 => span.as_secs(),
        60..3_600 => seconds,
        3_600..86_400 => seconds / 60 * 60,
        _ => seconds / 3_600 * 3_600,
    };
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}

fn trim(number: String) -> String {
    number.strip_suffix(".0").map(str::to_owned).unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_are_short() {
        for (millis, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (2_000, "2s"),
            (2_345, "2.3s"),
            (59_900, "59s"),
            (125_000, "2m 5s"),
            (3_725_000, "1h 2m"),
            (90_061_000, "1day 1h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), shown);
        }
    }

    #[test]
    fn a_bad_span_says_how_to_write_one() {
        for bad in ["", "30", "soon", "-1s", "5 parsecs"] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains("30s"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_span_or_an_error_that_says_how(
            text in prop_oneof!["\\PC{0,20}", "[0-9]{0,22}[a-z]{0,6} ?[0-9]{0,4}(s|ms|h)?"],
        ) {
            if let Err(error) = parse(&text) {
                prop_assert!(error.contains("30s"), "{error}");
            }
        }

        #[test]
        fn every_span_can_be_shown_and_what_is_shown_can_be_read(millis in any::<u64>()) {
            let span = Duration::from_millis(millis);
            let shown = show(span);
            // Tenths are for people only.
            if !shown.contains('.') {
                prop_assert!(parse(&shown).is_ok_and(|read| read <= span), "{shown}");
            }
        }
    }
}
