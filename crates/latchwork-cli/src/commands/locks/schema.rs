//! `latchwork locks schema`.

use clap::Args;
use latchwork::Locks;

use crate::exit::Failure;
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
    #[arg(long, env = "LATCHWORK_AT", value_name = "URL", hide_env_values = true)]
    at: String,

    /// Also print the statements that grant this role what it needs to lock, and no more.
    ///
    /// For a role that does not own the tables. For MariaDB and MySQL a user is written as NAME or
    /// NAME@HOST.
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
}

impl Schema {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut schema = Locks::schema(&self.at)?;
        if !schema.ends_with('\n') {
            schema.push('\n');
        }
        if let Some(role) = &self.role {
            schema += &Locks::grants(&self.at, role)?;
        }
        out(&schema);
        Ok(())
    }
}
