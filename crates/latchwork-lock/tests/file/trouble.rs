//! Bad addresses, no permission, no space, no descriptors.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_lock::blocking;

use crate::support::secs;
use crate::{address, child, locks, part, temp};

#[test]
fn addresses_are_checked() {
    let dir = temp();
    let base = address(dir.path());
    for bad in [
        format!("{base}?allow-network-fs=maybe"),
        format!("{base}?wait=1"),
        "file:locks".into(),
        "file://".into(),
        "file://elsewhere/locks".into(),
    ] {
        let error = blocking::Locks::connect(&bad).expect_err(&bad);
        assert_eq!(error.code(), "invalid_argument", "{bad}: {error}");
    }
    blocking::Locks::connect(&format!("{base}?allow-network-fs=true")).expect("known");
    fs::write(dir.path().join("file"), "").expect("written");
    let error = blocking::Locks::connect(&format!("{base}/file")).expect_err("no directory");
    assert_eq!(error.code(), "lock_backend", "{error}");
}

#[test]
fn a_directory_without_permission_is_a_clear_error() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temp();
    let inside = dir.path().join("locks");
    locks(&inside).lock("k").acquire().expect("free").release().expect("released");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
    let said = if rustix::process::geteuid().is_root() {
        // The build directory may be closed to others, so the program moves.
        let program = dir.path().join("program");
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let mut run = Command::new("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        let child = part("open", &inside, "k", secs(10)).start_as(run);
        child.expect_line("opened")
    } else {
        fs::set_permissions(&inside, PermissionsExt::from_mode(0o000)).expect("set");
        let child = child("open", &inside, "k", secs(10));
        let said = child.expect_line("opened");
        fs::set_permissions(&inside, PermissionsExt::from_mode(0o700)).expect("set");
        said
    };
    assert!(said.starts_with("lock_backend"), "{said}");
    assert!(said.contains("permission denied") && said.contains("locks"), "{said}");
}

#[test]
fn a_full_disk_is_an_outage_and_loses_nothing() {
    let dir = temp();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("SKIPPED a_full_disk_is_an_outage_and_loses_nothing: needs the right to mount");
        return;
    }
    let _unmount = Unmount(dir.path().to_owned());
    let locks = locks(dir.path());
    let held = locks.lock("held").acquire().expect("free");
    let fence = held.fence();
    let fill = dir.path().join("fill");
    let mut file = fs::File::create(&fill).expect("created");
    while file.write_all(&[0; 1024]).is_ok() {}

    let error = locks.lock("k").acquire().expect_err("no space");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    assert!(error.is_temporary() && error.to_string().contains("disk full"), "{error}");
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    assert!(!locks.exists("k").expect("inspected"), "nothing was granted");
    let error = held.refresh_with(latchwork_lock::Refresh {
        threshold: Some(Duration::ZERO),
        ..Default::default()
    });
    assert_eq!(error.expect_err("no space").code(), "lock_unavailable");
    let holders = locks.inspect("held").expect("inspected").holders;
    assert_eq!(holders[0].fence, fence, "nothing was lost");
    held.release().expect("a release needs no space");
    assert!(!locks.exists("held").expect("inspected"));

    drop(file);
    fs::remove_file(&fill).expect("removed");
    let guard = locks.lock("held").acquire().expect("there is space");
    assert!(guard.fence() > fence);
}

#[test]
fn too_many_open_files_are_an_outage() {
    let dir = temp();
    // A shell sets the limit, so that it is the child's alone.
    let mut run = Command::new("sh");
    run.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]);
    run.arg(std::env::current_exe().expect("this program"));
    let child = part("exhaust", dir.path(), "k", secs(10)).start_as(run);
    let said = child.expect_line("exhausted");
    assert!(said.starts_with("lock_unavailable") && said.contains("ulimit"), "{said}");
    assert_eq!(child.expect_line("again"), "ok");
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
