//! Root and other users in one directory: whose files they are, and what may not be read.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use latchwork_lock::PageRequest;

use crate::support::{Part, secs};
use crate::{address, files, locks, part, record, shards, temp};

/// Two users who have nothing to do with each other or with this one.
const OWNER: u32 = 61_234;
const OTHER: u32 = 61_235;

/// True when this test can be run: it needs several users.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED {test}: only root can be several users");
    }
    root
}

/// A directory that everybody can reach, with one of [`OWNER`]'s in it.
struct Home {
    dir: tempfile::TempDir,
    locks: PathBuf,
}

impl Home {
    fn new() -> Self {
        let dir = temp();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
        // The build directory may be closed to others, so the program moves.
        let program = std::env::current_exe().expect("this program");
        fs::copy(program, dir.path().join("program")).expect("copied");
        let home = dir.path().join("home");
        fs::create_dir(&home).expect("made");
        chown(&home, Some(OWNER), Some(OWNER)).expect("given");
        Home { locks: home.join("locks"), dir }
    }

    fn with_locks() -> Self {
        let home = Home::new();
        fs::create_dir(&home.locks).expect("made");
        chown(&home.locks, Some(OWNER), Some(OWNER)).expect("given");
        home
    }

    /// What a process of this user says of its part.
    fn run_as(&self, user: u32, part: &Part) -> String {
        let mut run = Command::new("setpriv");
        run.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
        run.arg(self.dir.path().join("program"));
        part.start_as(run).expect_line("opened")
    }
}

/// All that is in a directory, with itself.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for path in files(dir) {
        match path.symlink_metadata().expect("there").is_dir() {
            true => found.extend(tree(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn what_root_makes_is_of_the_directorys_owner() {
    if !is_root("what_root_makes_is_of_the_directorys_owner") {
        return;
    }
    // One that is there, and one that root makes in the owner's home.
    for home in [Home::with_locks(), Home::new()] {
        let locks = locks(&home.locks);
        let guard = locks.lock("k").acquire().expect("free");
        let all = tree(&home.locks);
        assert!(all.len() > 6, "keys, shards, a shard, a record, boot and swept: {all:?}");
        for path in all {
            let found = path.symlink_metadata().expect("there");
            let (mode, whose) = (found.mode() & 0o777, (found.uid(), found.gid()));
            assert_eq!(whose, (OWNER, OWNER), "{}", path.display());
            let inside = path != home.locks;
            assert!(!inside || mode & 0o177 == if found.is_dir() { 0o100 } else { 0 }, "{mode:o}");
        }
        let open = part("open", &home.locks, "k", secs(10));
        assert!(home.run_as(OWNER, &open).starts_with("lock_taken"));
        guard.release().expect("released");
        assert_eq!(home.run_as(OWNER, &open), "ok");
        // And back: what the owner made is root's to use, and stays the owner's.
        locks.lock("k").acquire().expect("free").release().expect("released");
        assert_eq!(home.run_as(OWNER, &open), "ok");
    }
}

#[test]
fn root_touches_nothing_outside_of_the_directory() {
    if !is_root("root_touches_nothing_outside_of_the_directory") {
        return;
    }
    let home = Home::with_locks();
    let outside = home.dir.path().join("outside");
    fs::create_dir(&outside).expect("made");
    let secret = outside.join("secret");
    let untouched = || {
        let found = secret.symlink_metadata().expect("there");
        assert_eq!((found.uid(), found.len(), found.mode() & 0o777), (0, 0, 0o600));
        assert_eq!(files(&outside), [secret.as_path()], "nothing was made there");
        assert_eq!(outside.metadata().expect("there").uid(), 0);
    };
    fs::write(&secret, "").expect("written");
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("set");
    locks(&home.locks).lock("k").acquire().expect("free").release().expect("released");
    let refused = |what: &str| {
        let answer = latchwork_lock::blocking::Locks::connect(&address(&home.locks))
            .and_then(|locks| locks.lock("k").acquire().map(|guard| guard.fence()));
        let error = answer.expect_err(what);
        assert_eq!(error.code(), "lock_backend", "{what}: {error}");
        untouched();
    };

    // A shard that leads elsewhere, by either kind of link.
    let shard = shards(&home.locks).remove(0);
    fs::remove_file(&shard).expect("removed");
    symlink(&secret, &shard).expect("linked");
    refused("a shard that is a symbolic link");
    fs::remove_file(&shard).expect("removed");
    fs::hard_link(&secret, &shard).expect("linked");
    refused("a shard that has another name");
    fs::remove_file(&shard).expect("removed");

    // A file that is about to be written, where something else lies already.
    let aside = shard.with_extension("tmp");
    symlink(&secret, &aside).expect("linked");
    locks(&home.locks).lock("k").acquire().expect("it is replaced").release().expect("released");
    untouched();
    fs::hard_link(&secret, &aside).expect("linked");
    locks(&home.locks).lock("k").acquire().expect("it is replaced").release().expect("released");
    untouched();

    // Directories that lead elsewhere, while they are open and before.
    for name in ["keys", "shards"] {
        let (inside, moved) = (home.locks.join(name), home.locks.join("moved"));
        let open = locks(&home.locks);
        fs::rename(&inside, &moved).expect("moved");
        symlink(&outside, &inside).expect("linked");
        let _ = open.lock("k").acquire().map(|guard| guard.release());
        untouched();
        refused(name);
        fs::remove_file(&inside).expect("removed");
        fs::rename(&moved, &inside).expect("moved back");
    }

    // The directory itself, which is in its owner's home.
    fs::rename(&home.locks, home.locks.with_extension("moved")).expect("moved");
    symlink(&outside, &home.locks).expect("linked");
    std::os::unix::fs::lchown(&home.locks, Some(OWNER), Some(OWNER)).expect("given");
    refused("a link of somebody else to a directory of root");
    fs::remove_file(&home.locks).expect("removed");
    symlink(home.locks.with_extension("moved"), &home.locks).expect("linked");
    std::os::unix::fs::lchown(&home.locks, Some(OWNER), Some(OWNER)).expect("given");
    let own = locks(&home.locks);
    own.lock("k").acquire().expect("a link to a directory of its own").release().expect("held");
}

/// A directory that is replaced under a process must not leave it locking in the old one.
#[test]
fn a_directory_that_was_replaced_is_an_error() {
    let dir = temp();
    let inside = dir.path().join("locks");
    let old = locks(&inside);
    old.lock("k").acquire().expect("free").release().expect("released");
    fs::rename(&inside, dir.path().join("moved")).expect("moved");
    let gone = old.lock("k").acquire().expect_err("gone");
    assert_eq!(gone.code(), "lock_backend", "{gone}");
    let held = locks(&inside).lock("k").acquire().expect("a new one");
    let gone = old.lock("k").acquire().expect_err("another directory");
    assert!(gone.code() == "lock_backend" && gone.to_string().contains("locks"), "{gone}");
    held.release().expect("released");
}

#[test]
fn what_may_not_be_read_is_an_error() {
    if !is_root("what_may_not_be_read_is_an_error") {
        return;
    }
    let home = Home::with_locks();
    let locks = locks(&home.locks);
    let _guard = locks.lock("k").acquire().expect("free");
    assert_eq!(locks.list("", PageRequest::default()).expect("listed").keys.len(), 1);
    let (list, inspect) =
        (part("list", &home.locks, "k", secs(10)), part("inspect", &home.locks, "k", secs(10)));
    assert_eq!(home.run_as(OWNER, &list), "1 keys");
    assert_eq!(home.run_as(OWNER, &inspect), "1 holders");

    // A record of somebody else's.
    let record = record(&home.locks);
    chown(&record, Some(0), Some(0)).expect("taken");
    for part in [&list, &inspect] {
        let said = home.run_as(OWNER, part);
        assert!(said.starts_with("lock_backend"), "{said}");
        assert!(said.contains("permission denied") && said.contains("lock%2Fk.json"), "{said}");
    }
    // A directory of somebody else's.
    for part in [&list, &inspect] {
        let said = home.run_as(OTHER, part);
        assert!(said.starts_with("lock_backend"), "{said}");
        assert!(said.contains("permission denied") && said.contains("locks"), "{said}");
    }
}
