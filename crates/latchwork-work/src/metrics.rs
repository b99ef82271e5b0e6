//! Figures through the `metrics` facade; without the feature they cost nothing. `docs/work.md` has the
//! table.

#[cfg(feature = "metrics")]
mod told {
    use std::time::Duration;

    use ::metrics::{counter, gauge, histogram};

    pub(crate) fn leased(order_type: &str) {
        counter!("latchwork_work_claims_total", "type" => order_type.to_owned()).increment(1);
    }

    pub(crate) fn submitted(order_type: &str) {
        counter!("latchwork_work_submissions_total", "type" => order_type.to_owned()).increment(1);
    }

    pub(crate) fn expired(order_type: &str) {
        counter!("latchwork_work_leases_expired_total", "type" => order_type.to_owned())
            .increment(1);
    }

    pub(crate) fn refused(code: &'static str) {
        counter!("latchwork_work_refusals_total", "code" => code).increment(1);
    }

    pub(crate) fn applied(order_type: &str, outcome: &'static str, took: Duration) {
        let order_type = order_type.to_owned();
        histogram!("latchwork_work_apply_seconds", "type" => order_type, "outcome" => outcome)
            .record(took);
    }

    pub(crate) fn sealed(events: u64) {
        counter!("latchwork_work_sealed_total").increment(events);
    }

    pub(crate) fn sealing_lag(lag: Duration) {
        gauge!("latchwork_work_sealing_lag_seconds").set(lag.as_secs_f64());
    }
}

#[cfg(not(feature = "metrics"))]
mod told {
    use std::time::Duration;

    pub(crate) fn leased(_: &str) {}
    pub(crate) fn submitted(_: &str) {}
    pub(crate) fn expired(_: &str) {}
    pub(crate) fn refused(_: &'static str) {}
    pub(crate) fn applied(_: &str, _: &'static str, _: Duration) {}
    pub(crate) fn sealed(_: u64) {}
    pub(crate) fn sealing_lag(_: Duration) {}
}

pub(crate) use told::*;

/// Counts a refusal, and logs it: what concerns an order or item that exists is an event besides.
pub(crate) fn count_refusal(error: &crate::Error) {
    let code = error.code();
    tracing::debug!(code, %error, "a request was refused");
    refused(code);
}
