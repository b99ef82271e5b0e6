//! The wall clock of a server that only one test uses, which the test can set.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Moves the wall clock of every process that is started with its environment.
pub struct WallClock {
    directory: tempfile::TempDir,
    step: fs::File,
}

impl WallClock {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // The server may be another user's process.
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its own");
        };
        open(directory.path(), 0o711);
        let step = fs::File::create(directory.path().join("step")).expect("created");
        let library = directory.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status()
            .expect("cc is there, since rustc links with it");
        assert!(compiled.success(), "cc failed");
        open(&library, 0o755);
        open(&directory.path().join("step"), 0o644);
        let clock = WallClock { directory, step };
        clock.step_by(0);
        clock
    }

    /// Sets the clock so many seconds ahead of this machine's.
    pub fn step_by(&self, seconds: i64) {
        self.step.write_all_at(&seconds.to_ne_bytes(), 0).expect("written");
    }

    /// What a process needs for its wall clock to be this one.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let path = |name| self.directory.path().join(name).into_os_string();
        vec![("LD_PRELOAD", path("clock.so")), ("LATCHWORK_CLOCK_STEP", path("step"))]
    }
}
