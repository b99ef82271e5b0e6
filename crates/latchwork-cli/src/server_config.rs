//! The configuration of the server: `latchwork.toml`, then `LATCHWORK_*`, then flags; the later one counts.

mod file;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure};
use crate::lock_location;

/// What can be set.
pub(crate) struct Setting {
    /// Its name in the file.
    pub(crate) key: &'static str,
    env: &'static str,
    flag: &'static str,
    default: Option<&'static str>,
}

pub(crate) const SETTINGS: [Setting; 12] = [
    Setting {
        key: "listen",
        env: "LATCHWORK_LISTEN",
        flag: "--listen",
        default: Some("127.0.0.1:8420"),
    },
    Setting { key: "data", env: "LATCHWORK_DATA", flag: "--data", default: None },
    Setting { key: "database", env: "LATCHWORK_DATABASE", flag: "--database", default: None },
    Setting { key: "types", env: "LATCHWORK_TYPES", flag: "--types", default: None },
    Setting { key: "tls.cert", env: "LATCHWORK_TLS_CERT", flag: "--tls-cert", default: None },
    Setting { key: "tls.key", env: "LATCHWORK_TLS_KEY", flag: "--tls-key", default: None },
    Setting {
        key: "log.filter",
        env: "LATCHWORK_LOG",
        flag: "--log",
        // The database driver's own words are about statements, and notices of the server.
        default: Some("info,sqlx=warn"),
    },
    Setting {
        key: "log.format",
        env: "LATCHWORK_LOG_FORMAT",
        flag: "--log-format",
        default: Some("text"),
    },
    Setting {
        key: "limits.max_body_bytes",
        env: "LATCHWORK_MAX_BODY_BYTES",
        flag: "--max-body-bytes",
        default: Some("4194304"),
    },
    Setting {
        key: "limits.max_waiting",
        env: "LATCHWORK_MAX_WAITING",
        flag: "--max-waiting",
        default: Some("4096"),
    },
    Setting {
        key: "limits.max_wait_s",
        env: "LATCHWORK_MAX_WAIT_S",
        flag: "--max-wait-s",
        default: Some("60"),
    },
    Setting {
        key: "limits.max_connections",
        env: "LATCHWORK_MAX_CONNECTIONS",
        flag: "--max-connections",
        default: Some("10000"),
    },
];

/// The flags of every command that needs the server's configuration.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServerFlags {
    /// The configuration file; latchwork.toml of the working directory, if it is there, unless told.
    #[arg(long, env = "LATCHWORK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the SQLite file; by default one of the user [env: LATCHWORK_DATA].
    #[arg(long, value_name = "DIR", conflicts_with = "database")]
    data: Option<String>,
    /// A database instead: postgres://user:password@host/database [env: LATCHWORK_DATABASE].
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

/// The flags that only a running server needs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ListenFlags {
    /// Where to listen; port 0 takes a free one. Other machines can reach it only once there are tokens
    /// [env: LATCHWORK_LISTEN] [default: 127.0.0.1:8420].
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The order types: a directory of declarations and their commands; without it, a sample
    /// [env: LATCHWORK_TYPES].
    #[arg(long, value_name = "DIR")]
    types: Option<String>,
    /// The certificates for TLS, as PEM, that of the server first [env: LATCHWORK_TLS_CERT].
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The key of the certificate, as PEM [env: LATCHWORK_TLS_KEY].
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// What is logged on stderr: error, warn, info, debug or trace, also for parts of the program, such as
    /// info,latchwork_server=debug [env: LATCHWORK_LOG] [default: info,sqlx=warn].
    #[arg(long, value_name = "FILTER", help_heading = "Log")]
    log: Option<String>,
    /// How it is logged: text, or json with one object a line [env: LATCHWORK_LOG_FORMAT] [default: text].
    #[arg(long, value_name = "FORMAT", help_heading = "Log")]
    log_format: Option<String>,
    /// The largest body of a request [env: LATCHWORK_MAX_BODY_BYTES] [default: 4194304].
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    max_body_bytes: Option<String>,
    /// How many long polls and streams may wait at once [env: LATCHWORK_MAX_WAITING] [default: 4096].
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_waiting: Option<String>,
    /// The longest wait of a request, in seconds [env: LATCHWORK_MAX_WAIT_S] [default: 60].
    #[arg(long, value_name = "SECONDS", help_heading = "Limits")]
    max_wait_s: Option<String>,
    /// How many connections there may be at once [env: LATCHWORK_MAX_CONNECTIONS] [default: 10000].
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: Option<String>,
}

/// Where a value is from, the lightest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Environment(&'static str),
    Flag(&'static str),
}

impl Source {
    fn weight(&self) -> u8 {
        match self {
            Source::Default => 0,
            Source::File { .. } => 1,
            Source::Environment(_) => 2,
            Source::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Environment(name) | Source::Flag(name) => f.write_str(name),
        }
    }
}

/// A value and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) text: String,
    pub(crate) source: Source,
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct ServerConfig {
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    values: BTreeMap<&'static str, Value>,
}

impl ServerConfig {
    /// Reads the file and the environment, and lets the flags decide.
    pub(crate) fn load(flags: &ServerFlags, listen: &ListenFlags) -> Result<Self, Failure> {
        let environment = |name: &str| std::env::var(name).ok();
        Self::load_with(flags, listen, Path::new("."), environment)
    }

    fn load_with(
        flags: &ServerFlags,
        listen: &ListenFlags,
        directory: &Path,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let usual = directory.join("latchwork.toml");
        let file = match &flags.config {
            Some(named) => Some(named.clone()),
            None => usual.exists().then_some(usual),
        };
        let mut found = match &file {
            Some(path) => file::read(path)?,
            None => BTreeMap::new(),
        };
        let mut values = BTreeMap::new();
        for setting in &SETTINGS {
            let flag = flag_of(setting.key, flags, listen);
            let env = environment(setting.env).filter(|value| !value.is_empty());
            let value = match (flag, env, found.remove(setting.key)) {
                (Some(text), ..) => Value { text, source: Source::Flag(setting.flag) },
                (None, Some(text), _) => Value { text, source: Source::Environment(setting.env) },
                (None, None, Some(value)) => value,
                (None, None, None) => match setting.default {
                    Some(text) => Value { text: text.to_owned(), source: Source::Default },
                    None => continue,
                },
            };
            values.insert(setting.key, value);
        }
        let config = ServerConfig { file, values };
        config.check()
    }

    /// A directory and a database exclude each other: the one that weighs more counts.
    fn check(mut self) -> Result<Self, Failure> {
        if let (Some(data), Some(database)) = (self.get("data"), self.get("database")) {
            let (data, database) = (data.source.clone(), database.source.clone());
            match data.weight().cmp(&database.weight()) {
                std::cmp::Ordering::Less => self.values.remove("data"),
                std::cmp::Ordering::Greater => self.values.remove("database"),
                std::cmp::Ordering::Equal => {
                    let message = format!(
                        "{data} names a directory and {database} a database; name one of them"
                    );
                    return Err(wrong(message));
                }
            };
        }
        if let Some(database) = self.get("database")
            && !["sqlite:", "postgres:", "postgresql:"]
                .iter()
                .any(|kind| database.text.starts_with(kind))
        {
            // Without the text: it may hold a password.
            let message = "a server keeps its data in PostgreSQL or SQLite: write \
                           postgres://user:password@host/database or sqlite:///directory/file.db";
            return Err(wrong(format!("{}: {message}", database.source)));
        }
        self.listen()?;
        for setting in SETTINGS.iter().filter(|setting| setting.key.starts_with("limits.")) {
            let limit = self.number::<u32>(setting.key)?;
            // A server that takes no connection or no body would never answer. Nobody need wait, though.
            if limit == 0 && setting.key != "limits.max_wait_s" {
                return Err(self.not_allowed(setting.key, "a whole number from 1 on"));
            }
        }
        self.log()?;
        if let (Some(one), None) | (None, Some(one)) = (self.get("tls.cert"), self.get("tls.key")) {
            let message = "TLS needs a certificate and its key: set both tls.cert and tls.key";
            return Err(wrong(format!("{}: {message}", one.source)));
        }
        Ok(self)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Where to listen.
    pub(crate) fn listen(&self) -> Result<std::net::SocketAddr, Failure> {
        self.number("listen")
    }

    /// A value as a number or an address.
    pub(crate) fn number<T: FromStr>(&self, key: &'static str) -> Result<T, Failure> {
        let text = self.get(key).map_or("", |value| &value.text);
        text.parse().map_err(|_| {
            let wanted = match key {
                "listen" => "an address such as 127.0.0.1:8420",
                _ => "a whole number that is allowed here",
            };
            self.not_allowed(key, wanted)
        })
    }

    /// Says where a value is from that is not what is wanted.
    fn not_allowed(&self, key: &'static str, wanted: &str) -> Failure {
        let text = self.get(key).map_or("", |value| &value.text);
        match self.get(key).map_or(&Source::Default, |value| &value.source) {
            // Its name is the key's.
            Source::Flag(flag) => wrong(format!("{flag}: {text:?} is not {wanted}")),
            source => wrong(format!("{source}: {key}: {text:?} is not {wanted}")),
        }
    }

    /// What is logged, and whether as JSON.
    pub(crate) fn log(&self) -> Result<(EnvFilter, bool), Failure> {
        let text = |key| self.get(key).map_or("", |value| &value.text);
        let source = |key| self.get(key).map_or(&Source::Default, |value| &value.source);
        let filter = EnvFilter::try_new(text("log.filter")).map_err(|error| {
            let example = "write it like info or info,latchwork_server=debug";
            wrong(format!("{}: log.filter: {error}; {example}", source("log.filter")))
        })?;
        match text("log.format") {
            "text" => Ok((filter, false)),
            "json" => Ok((filter, true)),
            other => {
                let source = source("log.format");
                Err(wrong(format!("{source}: log.format: {other:?} is neither text nor json")))
            }
        }
    }

    /// The directory of the order types, which must be there.
    pub(crate) fn types(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(value) = self.get("types") else { return Ok(None) };
        let directory = PathBuf::from(&value.text);
        match directory.is_dir() {
            true => Ok(Some(directory)),
            false => Err(self.not_allowed("types", "a directory that can be read")),
        }
    }

    /// The files for TLS.
    pub(crate) fn tls(&self) -> Option<(PathBuf, PathBuf)> {
        let path = |key| self.get(key).map(|value| PathBuf::from(&value.text));
        Some((path("tls.cert")?, path("tls.key")?))
    }

    /// The address of the database, and how it is shown. A directory that is missing is made where that
    /// is asked for, and told otherwise.
    pub(crate) fn database(&self, make: bool) -> Result<(String, String), Failure> {
        if let Some(url) = self.get("database") {
            return Ok((url.text.clone(), lock_location::without_password(&url.text)));
        }
        let directory = self.directory()?;
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let file = directory.join("latchwork.db");
        let failed = |message| {
            let mut failure = Failure::new(Exit::Unavailable, "work_store_backend", message);
            failure.hint = Some("name another directory with --data".to_owned());
            failure
        };
        if make {
            // What callers propose and submit is nobody else's business, unless told.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            made.map_err(|error| {
                failed(format!("{} cannot be made: {error}", directory.display()))
            })?;
        } else if !file.exists() {
            let message = format!("{} does not exist: no server was there", file.display());
            return Err(failed(message));
        }
        Ok((sqlite_url(&file)?, file.display().to_string()))
    }

    /// The directory of the SQLite file.
    pub(crate) fn directory(&self) -> Result<PathBuf, Failure> {
        match self.get("data") {
            Some(data) => Ok(PathBuf::from(&data.text)),
            None => Ok(lock_location::default_directory()?.with_file_name("server")),
        }
    }
}

fn flag_of(key: &str, flags: &ServerFlags, listen: &ListenFlags) -> Option<String> {
    let flag = match key {
        "data" => &flags.data,
        "database" => &flags.database,
        "listen" => &listen.listen,
        "types" => &listen.types,
        "tls.cert" => &listen.tls_cert,
        "tls.key" => &listen.tls_key,
        "log.filter" => &listen.log,
        "log.format" => &listen.log_format,
        "limits.max_body_bytes" => &listen.max_body_bytes,
        "limits.max_waiting" => &listen.max_waiting,
        "limits.max_wait_s" => &listen.max_wait_s,
        "limits.max_connections" => &listen.max_connections,
        _ => &None,
    };
    flag.clone()
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, "invalid_argument", message)
}

fn sqlite_url(file: &Path) -> Result<String, Failure> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    match file.to_str() {
        Some(path) if !path.contains(['?', '%', '#']) => Ok(format!("sqlite://{path}")),
        _ => Err(wrong(format!(
            "{} cannot be used as the directory of a database: use a path of plain UTF-8 characters",
            file.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(text: &str, env: &[(&str, &str)], listen: ListenFlags) -> Result<ServerConfig, String> {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("latchwork.toml"), text).expect("written");
        let environment = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let flags = ServerFlags::default();
        ServerConfig::load_with(&flags, &listen, dir.path(), environment)
            .map_err(|failure| failure.message.replace(&dir.path().display().to_string(), "DIR"))
    }

    #[test]
    fn flags_weigh_more_than_the_environment_and_that_more_than_the_file() {
        let text = "listen = \"127.0.0.1:1\"\ndata = \"/srv\"\n[limits]\nmax_waiting = 7\n";
        let file = load(text, &[], ListenFlags::default()).expect("legal");
        assert_eq!(file.listen().expect("an address").port(), 1);
        assert_eq!(file.number::<usize>("limits.max_waiting").expect("a number"), 7);
        let source = &file.get("limits.max_waiting").expect("set").source;
        assert!(matches!(source, Source::File { line: 4, .. }), "{source:?}");
        let env = [("LATCHWORK_LISTEN", "127.0.0.1:2"), ("LATCHWORK_DATA", "")];
        let both = load(text, &env, ListenFlags::default()).expect("legal");
        assert_eq!(
            both.get("listen").expect("set").source,
            Source::Environment("LATCHWORK_LISTEN")
        );
        assert_eq!(both.get("data").expect("set").text, "/srv");
        let flags = ListenFlags { listen: Some("127.0.0.1:3".to_owned()), ..Default::default() };
        let all = load(text, &env, flags).expect("legal");
        assert_eq!(all.listen().expect("an address").port(), 3);
        // A database in the environment counts before the directory of the file.
        let env = [("LATCHWORK_DATABASE", "postgres://me:hush@host/db")];
        let database = load(text, &env, ListenFlags::default()).expect("legal");
        assert!(database.get("data").is_none());
        let (_, shown) = database.database(false).expect("an address");
        assert_eq!(shown, "postgres://me:***@host/db");
    }

    #[test]
    fn a_database_of_another_kind_is_refused_without_its_password() {
        for other in ["mysql://me:hush@host/db", "hush", "redis://:hush@host", "/var/lib/hush"] {
            let env = [("LATCHWORK_DATABASE", other)];
            let message = load("", &env, ListenFlags::default()).expect_err(other);
            assert!(
                message.starts_with("LATCHWORK_DATABASE: a server keeps its data in"),
                "{message}"
            );
            assert!(!message.contains("hush"), "{message}");
        }
        for known in ["postgres://h/d", "postgresql://h/d", "sqlite:///a.db", "sqlite:a.db"] {
            load("", &[("LATCHWORK_DATABASE", known)], ListenFlags::default()).expect(known);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_line() {
        for (text, told) in [
            (
                "listen = \"127.0.0.1:1\"\nlistne = 1\n",
                "DIR/latchwork.toml:2: there is no \"listne\"",
            ),
            (
                "\n[tls]\nkey = \"k\"\nkye = \"k\"\n",
                "DIR/latchwork.toml:4: there is no \"tls.kye\"",
            ),
            ("[limit]\n", "DIR/latchwork.toml:1: there is no \"limit\""),
            ("listen = [1]\n", "DIR/latchwork.toml:1: listen: "),
            ("listen = \"x\"\n", "DIR/latchwork.toml:1: listen: \"x\" is not an address"),
            ("[limits]\nmax_waiting = -1\n", "DIR/latchwork.toml:2: limits.max_waiting: \"-1\""),
            (
                "[limits]\nmax_wait_s = 0\nmax_connections = 0\n",
                "DIR/latchwork.toml:3: limits.max_connections: \"0\" is not a whole number from 1 on",
            ),
            ("listen = \n", "DIR/latchwork.toml:1: "),
            (
                "data = \"/a\"\ndatabase = \"postgres://h/d\"\n",
                "latchwork.toml:1 names a directory",
            ),
            ("[tls]\ncert = \"c\"\n", "DIR/latchwork.toml:2: TLS needs a certificate and its key"),
            ("[log]\nformat = \"xml\"\n", "DIR/latchwork.toml:2: log.format: \"xml\" is neither"),
            ("[log]\nfilter = \"x=y=z\"\n", "DIR/latchwork.toml:2: log.filter: "),
        ] {
            let message = load(text, &[], ListenFlags::default()).expect_err(text);
            assert!(message.contains(told), "{text}: {message}");
        }
        let env = [("LATCHWORK_MAX_WAITING", "many")];
        let message = load("", &env, ListenFlags::default()).expect_err("no number");
        assert!(message.starts_with("LATCHWORK_MAX_WAITING: limits.max_waiting"), "{message}");
        let flags = ServerFlags { config: Some("/no/such/file".into()), ..Default::default() };
        let none = |_: &str| None;
        let listen = ListenFlags::default();
        let failure = ServerConfig::load_with(&flags, &listen, Path::new("/"), none);
        assert!(failure.expect_err("no file").message.contains("/no/such/file"));
    }

    proptest! {
        #[test]
        fn any_file_is_a_configuration_or_an_error_with_its_line(
            lines in prop::collection::vec(prop_oneof![
                "\\PC{0,20}",
                "(listen|data|database|limits|tls|[a-z]{1,5})(\\.[a-z_]{1,12})? = (\"[a-z0-9:/.]{0,16}\"|[0-9]{1,4}|\\[1\\]|true)",
                "\\[(limits|tls|[a-z]{1,4})\\]",
            ], 0..6),
        ) {
            if let Err(message) = load(&lines.join("\n"), &[], ListenFlags::default()) {
                let told = ["latchwork.toml:", "TLS needs", "names a directory"];
                prop_assert!(told.iter().any(|told| message.contains(told)), "{message}");
            }
        }

        #[test]
        fn any_variable_is_a_value_or_an_error_that_names_it(text in "\\PC{1,20}") {
            for name in ["LATCHWORK_LISTEN", "LATCHWORK_MAX_WAITING"] {
                if let Err(message) = load("", &[(name, &*text)], ListenFlags::default()) {
                    prop_assert!(message.contains(name), "{message}");
                }
            }
        }
    }
}
