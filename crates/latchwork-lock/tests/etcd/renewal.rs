//! Renewals that the server refuses for a while: they are tried until trust ends, and the cause is known.

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, DeleteOptions, PutOptions,
};
use latchwork_lock::{Guard, Locks};

use crate::cluster::Cluster;
use crate::doors::switch_on_users;
use crate::support::{connect, eventually, secs};

/// Renewed every four seconds, so that several renewals fail before trust ends.
async fn renewed(locks: &Locks) -> Guard {
    locks.lock("key").ttl(secs(12)).auto_renew(secs(120)).acquire().await.expect("free")
}

async fn fails_for_a_while(guard: &Guard, why: &str) {
    eventually("a renewal failed", async || guard.renewal_error().is_some()).await;
    let error = guard.renewal_error().expect("just seen").to_string();
    assert!(error.contains(why), "not {why:?}: {error}");
    assert!(!error.contains("secret"), "{error}");
    assert!(guard.is_held(), "it has most of its time yet");
}

async fn is_renewed_again(guard: &Guard) {
    eventually("it is renewed", async || guard.renewal_error().is_none()).await;
    assert!(guard.is_held());
}

/// Puts until the server has no space left.
async fn fill(client: &mut Client) {
    for n in 0..64 {
        let filled = client.put(format!("fill-{n}"), vec![b'x'; 1 << 20], None::<PutOptions>).await;
        if let Err(error) = filled {
            assert!(error.to_string().contains("space exceeded"), "{error}");
            return;
        }
    }
    panic!("it is never full");
}

async fn make_room(client: &mut Client) {
    let removed = client.delete("fill-", Some(DeleteOptions::new().with_prefix())).await;
    let removed = removed.expect("removed");
    let revision = removed.header().expect("a header").revision();
    let physical = CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await.expect("compacted");
    client.defragment().await.expect("defragmented");
    let member = removed.header().expect("a header").member_id();
    let mut options = AlarmOptions::new();
    options.with_member(member);
    let disarmed = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await;
    disarmed.expect("disarmed");
}

pub(crate) async fn a_renewal_outlasts_a_server_that_is_full_for_a_while() {
    let quota = ["--quota-backend-bytes".to_owned(), (8 << 20).to_string()];
    let cluster = Cluster::start_with(1, &quota).await;
    let mut client = cluster.client(0).await;
    let locks = cluster.locks().await;
    let guard = renewed(&locks).await;
    fill(&mut client).await;
    fails_for_a_while(&guard, "the server is full").await;
    make_room(&mut client).await;
    is_renewed_again(&guard).await;
    guard.release().await.expect("held");
}

pub(crate) async fn a_renewal_outlasts_a_password_that_is_wrong_for_a_while() {
    let cluster = Cluster::start(1).await;
    switch_on_users(&mut cluster.client(0).await).await;
    let place = cluster.place(0);
    let root = etcd_client::ConnectOptions::new().with_user("root", "secret-root");
    let mut root = Client::connect([&place], Some(root)).await.expect("root may");
    let locks = connect(&format!("etcd://me:secret%251@{place}/app")).await;
    let guard = renewed(&locks).await;
    root.user_change_password("me", "secret-other").await.expect("changed");
    fails_for_a_while(&guard, "password").await;
    root.user_change_password("me", "secret%1").await.expect("changed back");
    is_renewed_again(&guard).await;
    guard.release().await.expect("held");
}
