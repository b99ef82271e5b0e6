//! Connections that the server ends because they idle, and rights that are gone for a while.

use crate::server::{Server, admin_command};
use crate::support::idle::idle_connections_are_opened_again;
use crate::{eventually, locks, secs};

pub(crate) async fn idle_connections_come_back() {
    let server = Server::start(&["--timeout", "1"]);
    idle_connections_are_opened_again(&server.address(), secs(1)).await;
}

pub(crate) async fn a_renewal_outlasts_a_right_that_is_gone_for_a_while() {
    let server = Server::start(&[]);
    let set = |rule: &str| {
        admin_command::<()>(&server.address(), &["ACL", "SETUSER", "app", rule]);
    };
    for rule in ["on", ">hush", "~latchwork:*", "&latchwork:*", "+@all"] {
        set(rule);
    }
    let locks = locks(&format!("redis://app:hush@127.0.0.1:{}", server.port)).await;
    let guard = locks.lock("key").ttl(secs(9)).auto_renew(secs(60)).acquire().await.expect("free");
    set("-@scripting");
    eventually("a renewal failed", async || guard.renewal_error().is_some()).await;
    let why = guard.renewal_error().expect("just seen").to_string();
    assert!(why.contains("right"), "{why}");
    assert!(guard.is_held(), "it has most of its time yet");
    set("+@scripting");
    eventually("it is renewed", async || guard.renewal_error().is_none()).await;
    guard.release().await.expect("held");
}
