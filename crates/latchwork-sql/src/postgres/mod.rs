//! PostgreSQL: opening a pool, telling errors apart, and migrations.

mod error;
mod job_connection;
mod migrate;
mod open;

pub use error::{explain, is_broken, is_mixed_up, is_unheard};
pub use job_connection::{JobConnection, in_time, is_silence};
pub use migrate::{migrate, script};
pub use open::{Server, Settings, check, open, options, separate};
