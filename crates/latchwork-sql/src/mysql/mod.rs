//! MariaDB and MySQL: opening a pool, telling errors apart, and migrations.

mod error;
mod job_connection;
mod migrate;
mod open;

pub use error::{explain, is_broken, is_collision, is_duplicate, is_timeout};
pub use job_connection::{JobConnection, JobConnections, in_time, is_silence};
pub use migrate::{migrate, script};
pub use open::{Settings, check, open, options, separate};
