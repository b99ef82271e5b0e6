//! Time namespaces, whose boot clocks differ.

use std::fs;

use latchwork_lock::PageRequest;

use crate::support::{secs, time_namespace};
use crate::{holder, locks, part, record, replace, temp};

#[test]
fn another_time_namespace_is_refused() {
    let Some(elsewhere) = time_namespace("another_time_namespace_is_refused") else { return };
    let dir = temp();
    let here = locks(dir.path());
    let open =
        |key| part("open", dir.path(), key, secs(10)).start_as(elsewhere()).expect_line("opened");

    // Held here, wanted there.
    let guard = here.lock("k").ttl(secs(60)).acquire().expect("free");
    assert!(!fs::read_to_string(record(dir.path())).expect("reads").contains("offset"));
    let said = open("k");
    assert!(said.starts_with("lock_backend") && said.contains("time namespace"), "{said}");
    assert!(guard.refresh().is_ok(), "it is still held");
    guard.release().expect("held to the end");
    assert_eq!(open("k"), "ok", "a free key may be had there");

    // Held there, wanted here.
    let part = part("hold", dir.path(), "k", secs(60));
    let mut child = part.start_as(elsewhere());
    child.expect_line("held");
    for error in [
        here.lock("k").acquire().expect_err("held"),
        here.lock("k").wait(secs(5)).acquire().expect_err("held"),
        here.inspect("k").expect_err("who can tell"),
        here.list("", PageRequest::default()).expect_err("who can tell"),
    ] {
        assert_eq!(error.code(), "lock_backend", "{error}");
        assert!(error.to_string().contains("time namespace"), "{error}");
    }
    assert!(here.list("other", PageRequest::default()).expect("listed").keys.is_empty());
    let said = open("k");
    assert!(said.starts_with("lock_taken"), "one clock is one namespace: {said}");
    assert_eq!(child.release(), "ok");
    here.lock("k").acquire().expect("free").release().expect("released");

    // Left behind there: nobody here can tell, but a person who knows can say so.
    let child = part.start_as(elsewhere());
    child.expect_line("held");
    child.kill();
    assert_eq!(here.lock("k").acquire().expect_err("who can tell").code(), "lock_backend");
    here.break_lock("k").expect("broken");
    here.lock("k").acquire().expect("free").release().expect("released");
}

/// Where nobody may make a time namespace, a record that says so must do.
#[test]
fn a_record_of_another_boot_clock_is_refused() {
    let dir = temp();
    let here = locks(dir.path());
    let (child, fence) = holder(dir.path(), "k", secs(600));
    let path = record(dir.path());
    replace(&path, "\"boot_id\"", "\"boot_offset_ns\": 100000000000000, \"boot_id\"");
    let error = here.lock("k").acquire().expect_err("held");
    assert!(error.code() == "lock_backend" && error.to_string().contains("time namespace"));
    // After a reboot the offset means nothing.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("reads");
    replace(&path, boot.trim(), "00000000-0000-0000-0000-000000000000");
    let guard = here.lock("k").acquire().expect("that was before the reboot");
    assert!(guard.fence().get() > fence);
    drop(child);
}
