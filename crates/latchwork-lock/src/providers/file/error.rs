//! What went wrong on disk, and what to do about it.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::Error;

/// The provider's name in messages.
pub(super) const NAME: &str = "file";

/// What is done when the provider is made.
pub(super) const OPENING: &str = "opening the directory";

/// An error of the operating system.
pub(super) fn io(during: &'static str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let path = path.display();
    let full = |reason: String| (true, reason);
    let wrong = |reason: String| (false, reason);
    let (temporary, reason) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            full(format!("disk full: no space left for {path}; nothing was changed; free some"))
        }
        Some(Errno::MFILE | Errno::NFILE) => full(format!(
            "too many open files to open {path}; nothing was changed; raise the limit (ulimit -n)"
        )),
        Some(Errno::NOMEM | Errno::AGAIN) => full(format!("{path}: {error}; nothing was changed")),
        Some(Errno::ACCESS | Errno::PERM) => wrong(format!(
            "{path}: permission denied; let every process that locks here run as the user who owns \
             the directory, or choose another directory"
        )),
        Some(Errno::ROFS) => {
            wrong(format!("{path} is on a read-only file system; choose another directory"))
        }
        Some(Errno::NOTDIR) => {
            wrong(format!("{path}: a part of the path is a file; choose another directory"))
        }
        Some(Errno::NOENT) if during == OPENING => {
            wrong(format!("{path} cannot be made here; choose another directory"))
        }
        Some(Errno::NOENT) => wrong(format!(
            "{path} is gone: somebody removed the lock directory; start this process again to make \
             a new one"
        )),
        _ => wrong(format!("{path}: {error}")),
    };
    if temporary {
        Error::unavailable(NAME, during, reason, Some(Box::new(error)))
    } else {
        Error::backend(NAME, during, reason, Some(Box::new(error)))
    }
}

/// A record that cannot be read. It may say that somebody holds the key, so it is not free.
pub(super) fn corrupt(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::backend(
        NAME,
        "reading a record",
        format!(
            "{} is damaged ({what}); nothing was changed, and the key counts as taken; \
             `latchwork locks break KEY` removes it, or remove the file while no process uses \
             the key",
            path.display()
        ),
        None,
    )
}

/// A record that is not of this key or not of this version. Not ours to remove.
pub(super) fn foreign(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::backend(
        NAME,
        "reading a record",
        format!("{} {what}; nothing was changed", path.display()),
        None,
    )
}

/// A record whose deadlines were written by another clock than ours.
pub(super) fn other_clock(path: &Path) -> Error {
    Error::backend(
        NAME,
        "reading a record",
        format!(
            "{} was written in another time namespace, whose boot clock is not that of this process, \
             so nobody here can tell whether the key is still held; nothing was changed, and the key \
             counts as taken; let all processes that lock here run in one time namespace; if those \
             there are gone, `latchwork locks break KEY` removes it",
            path.display()
        ),
        None,
    )
}

/// The path leads to another directory than the one that is open.
pub(super) fn replaced(path: &Path) -> Error {
    Error::backend(
        NAME,
        "locking a shard",
        format!(
            "{} is gone: somebody removed or replaced the lock directory; nothing was changed; start \
             this process again",
            path.display()
        ),
        None,
    )
}

/// A shard whose fence is lost.
pub(super) fn no_fence(path: &Path) -> Error {
    Error::backend(
        NAME,
        "reading the last fence",
        format!(
            "both copies of the last fence in {} are damaged; nothing was changed; stop every \
             process that locks here and remove that file: fences then go on from the wall clock, \
             so check that it is right",
            path.display()
        ),
        None,
    )
}

/// Somebody has been in the middle of an edit for too long: stopped, most likely.
pub(super) fn stuck(path: &Path, patience: Duration) -> Error {
    Error::unavailable(
        NAME,
        "locking a shard",
        format!(
            "a process has been in the middle of an edit for over {patience:?}; is one stopped \
             (SIGSTOP, a debugger)? /proc/locks tells who holds {}",
            path.display()
        ),
        None,
    )
}
