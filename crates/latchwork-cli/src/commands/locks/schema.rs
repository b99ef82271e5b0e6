//! `latchwork locks schema`.

use std::path::PathBuf;

use clap::Args;
use latchwork::Locks;

use crate::exit::{Exit, Failure};
use crate::lock_location::{ENVIRONMENT, FILE_ENVIRONMENT, address};
use crate::output::out;

const EXAMPLES: &str = "\
Examples:
  latchwork locks schema --at postgres: | psql mydatabase
  latchwork locks schema --at mysql: | mariadb mydatabase
  latchwork locks schema --at sqlite:
  latchwork locks schema --at postgres: --role app | psql mydatabase";

/// Print the tables that a database needs for locks, as SQL.
///
/// They are made by themselves on first use. This is for those who let nobody but themselves make
/// tables, or want to see them before.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schema {
    /// An address of the database, or its kind: postgres:, mysql: or sqlite:. Nothing is connected to.
    #[arg(long, env = ENVIRONMENT, value_name = "URL", hide_env_values = true)]
    at: Option<String>,

    /// A file whose first line is the address.
    #[arg(long, env = FILE_ENVIRONMENT, value_name = "FILE")]
    at_file: Option<PathBuf>,

    /// Also print the statements that grant this role what it needs to lock, and no more.
    ///
    /// For a role that does not own the tables. For MariaDB and MySQL a user is written as NAME or
    /// NAME@HOST.
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
}

impl Schema {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let Some(at) = address(self.at.as_deref(), self.at_file.as_deref())? else {
            let message = "which database? Say --at postgres:, mysql: or sqlite:";
            return Err(Failure::new(Exit::Usage, "invalid_argument", message));
        };
        let mut schema = Locks::schema(&at)?;
        if !schema.ends_with('\n') {
            schema.push('\n');
        }
        if let Some(role) = &self.role {
            schema += &Locks::grants(&at, role)?;
        }
        out(&schema);
        Ok(())
    }
}
