//! The tables. A time is text of one width, so that it sorts, in nanoseconds, so that what is read
//! is what was written.

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS payments (
    id TEXT PRIMARY KEY,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    currency TEXT NOT NULL,
    state TEXT NOT NULL,
    capture_expires_at TEXT,
    captured_cents INTEGER CHECK (captured_cents > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS captures (
    payment_id TEXT NOT NULL REFERENCES payments (id),
    idempotency_key TEXT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    captured_at TEXT NOT NULL,
    PRIMARY KEY (payment_id, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS transfers (
    from_payment_id TEXT NOT NULL REFERENCES payments (id),
    idempotency_key TEXT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    to_payment_id TEXT NOT NULL REFERENCES payments (id),
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    transferred_at TEXT NOT NULL,
    PRIMARY KEY (from_payment_id, idempotency_key)
) STRICT, WITHOUT ROWID;
";
