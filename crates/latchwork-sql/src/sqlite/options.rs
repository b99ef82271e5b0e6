//! Which file, and how.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::{Error, Result};

/// How a database file is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The file.
    pub path: PathBuf,
    /// Whether a missing file is made. The directory must exist.
    pub create: bool,
    /// When a commit is on the disk.
    pub synchronous: Synchronous,
    /// Whether a file on a network file system is accepted. Only for one that a single machine
    /// uses: a database is not safe there otherwise.
    pub allow_network: bool,
}

/// What a commit waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// It is on the disk when it is answered.
    #[default]
    Full,
    /// It outlives the process, but a power cut may take back the last ones.
    Normal,
}

const WRITE: &str = "write sqlite:///directory/file.db";

impl Options {
    /// The defaults for a file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let synchronous = Synchronous::Full;
        Options { path: path.into(), create: true, synchronous, allow_network: false }
    }

    /// Reads `sqlite:///absolute/file.db`, `sqlite:relative.db` and their parameters
    /// `mode=rwc|rw`, `synchronous=full|normal` and `allow-network-fs=true`.
    ///
    /// # Errors
    /// When it is no such address.
    pub fn parse(url: &str) -> Result<Self> {
        let rest = url
            .trim()
            .strip_prefix("sqlite:")
            .ok_or_else(|| wrong(format!("it is no address of an SQLite file; {WRITE}")))?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        if rest.contains('#') {
            return Err(wrong("it has a #; write %23 where the file's name has one"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = percent_decode_str(path)
            .decode_utf8()
            .map_err(|_| wrong("the file's name is not UTF-8"))?;
        if path.is_empty() {
            return Err(wrong(format!("it names no file; {WRITE}")));
        }
        let mut options = Options::at(Path::new(&*path));
        if path.contains(":memory:") {
            return Err(in_memory());
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "mode=rwc" => options.create = true,
                "mode=rw" => options.create = false,
                "mode=memory" => return Err(in_memory()),
                "mode=ro" => return Err(wrong("mode=ro cannot work: everything here writes")),
                "synchronous=full" => options.synchronous = Synchronous::Full,
                "synchronous=normal" => options.synchronous = Synchronous::Normal,
                "allow-network-fs=true" => options.allow_network = true,
                _ => {
                    return Err(wrong(
                        "its parameters are mode=rwc or mode=rw, synchronous=full or \
                         synchronous=normal, and allow-network-fs=true",
                    ));
                }
            }
        }
        Ok(options)
    }
}

fn in_memory() -> Error {
    wrong("SQLite in memory is seen by one connection only; write memory: for locks in memory")
}

fn wrong(message: impl Into<String>) -> Error {
    Error::permanent(message, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_name_a_file() {
        for (url, path) in [
            ("sqlite:///var/lib/a.db", "/var/lib/a.db"),
            ("sqlite:/var/lib/a.db", "/var/lib/a.db"),
            ("sqlite:a.db", "a.db"),
            ("sqlite://a.db", "a.db"),
            ("sqlite:///a%20b%23.db?mode=rw&synchronous=normal", "/a b#.db"),
        ] {
            assert_eq!(Options::parse(url).expect(url).path, Path::new(path), "{url}");
        }
        let options = Options::parse("sqlite:a?mode=rw&synchronous=normal").expect("good");
        assert!(!options.create && options.synchronous == Synchronous::Normal);
        assert!(!options.allow_network);
        assert!(Options::parse("sqlite:a?allow-network-fs=true").expect("good").allow_network);
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_hint() {
        for (url, hint) in [
            ("sqlite:", "names no file"),
            ("sqlite://", "names no file"),
            ("sqlite::memory:", "memory:"),
            ("sqlite://:memory:", "memory:"),
            ("sqlite:x?mode=memory", "memory:"),
            ("sqlite:x?mode=ro", "writes"),
            ("sqlite:x?cache=shared", "synchronous=normal"),
            ("sqlite:x#y", "%23"),
            ("/tmp/x.db", "sqlite:///"),
        ] {
            let error = Options::parse(url).expect_err(url);
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "(sqlite:(//)?)?\\PC{0,40}") {
            if let Ok(options) = Options::parse(&text) {
                prop_assert!(!options.path.as_os_str().is_empty());
            }
        }

        #[test]
        fn every_path_can_be_written(path in "/[\\PC&&[^:]]{1,30}", create in any::<bool>()) {
            let written = percent_encoding::utf8_percent_encode(&path, percent_encoding::NON_ALPHANUMERIC);
            let mode = if create { "rwc" } else { "rw" };
            let options = Options::parse(&format!("sqlite://{written}?mode={mode}")).expect("legal");
            prop_assert_eq!((options.path.as_path(), options.create), (Path::new(&path), create));
        }
    }
}
