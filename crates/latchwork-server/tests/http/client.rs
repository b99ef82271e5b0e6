//! The typed client against the real server.

use std::time::Duration;

use latchwork_api::client::{Client, ErrorKind, EventsWanted};
use latchwork_api::{
    ApproveRequest, CheckoutRequest, CommentRequest, FailRequest, FinalizeMode, FinalizeRequest,
    PartRequest, Proposal, ProposeManyRequest, RejectRequest, ReleaseRequest, ResultEdit,
    ReviewError, SnoozeRequest, SubmitManyRequest, SubmitRequest,
};
use latchwork_server::{Shutdown, serve};
use serde_json::json;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::support::{Fixture, on_both};

on_both![an_order_from_its_proposal_to_its_receipt, every_operation_has_a_method];

/// A server on a socket, until it is dropped.
struct Served {
    client: Client,
    port: u16,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn start(f: &Fixture, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (router, shutdown) = (f.router.clone(), f.shutdown.clone());
        let ending = shutdown.clone();
        let task =
            tokio::spawn(async move { serve(listener, router, &ending).await.expect("served") });
        let client = Client::new(&format!("http://127.0.0.1:{port}")).expect("an address");
        Served { client, port, shutdown, task }
    }

    fn by(&self, actor: &str) -> Client {
        self.client.clone().actor(actor)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

fn wanted() -> CheckoutRequest {
    CheckoutRequest { limit: Some(10), ..CheckoutRequest::default() }
}

async fn an_order_from_its_proposal_to_its_receipt(f: Fixture) {
    let server = Served::start(&f, 0).await;
    let (ada, agent) = (server.by("user:ada"), server.by("agent:a-1"));
    let proposal = Proposal::new("page", json!({"texts": ["a", "b"]}));
    let first = ada.propose(&proposal).key("k").reply().await.expect("proposed");
    assert!(!first.replayed && first.version == Some(1) && first.request_id.is_some());
    let again = ada.propose(&proposal).key("k").reply().await.expect("a replay");
    assert!(again.replayed && again.value == first.value);
    let other = Proposal::new("page", json!({"texts": ["c"]}));
    let error = ada.propose(&other).key("k").await.expect_err("another request");
    assert_eq!((error.code(), error.is_temporary()), ("idempotency_conflict", false));
    let id = first.value.order.id;

    let leases = agent.checkout(&wanted()).await.expect("leased").leases;
    let wrong = SubmitRequest::new(leases[0].id, json!(""));
    let error = agent.submit(&wrong).await.expect_err("refused");
    let problem = error.problem().expect("a problem");
    assert_eq!(
        (problem.code.as_str(), problem.errors[0].code.as_str()),
        ("result_invalid", "minLength")
    );
    let submissions = leases.iter().map(|lease| SubmitRequest::new(lease.id, json!("x"))).collect();
    let many = SubmitManyRequest { submissions, all_or_none: true };
    assert_eq!(agent.submit_many(&many).await.expect("submitted").outcomes.len(), 2);

    let preview = ada.preview(id).await.expect("a preview");
    assert_eq!(preview.diff.as_ref().expect("a diff").after, json!(["x", "x"]));
    let mut approval = ApproveRequest::of(&preview);
    let late = server.by("user:bob").approve(id, &approval).if_version(1).await;
    let late = late.expect_err("another version");
    assert_eq!(late.code(), "version_mismatch");
    let current = late.problem().and_then(|problem| problem.current_version).expect("a version");
    approval.edits = vec![ResultEdit { item: leases[0].item_id, result: json!("y") }];
    let edited = server.by("user:bob").approve(id, &approval).if_version(current).await;
    let edited = edited.expect("approved");
    let error = server.by("user:cy").approve(id, &ApproveRequest::of(&preview)).await;
    assert!(!error.expect_err("changed").problem().expect("a problem").changes.is_empty());
    let preview = ada.preview(id).await.expect("a preview");
    assert_eq!(preview.digest, edited.digest);
    let approval = ApproveRequest::of(&preview);
    let approved = server.by("user:cy").approve(id, &approval).await.expect("approved");
    assert_eq!(approved.order.state, "approved");
    f.apply().await;
    let error = ada.receipt(id).await.expect_err("not sealed");
    assert!(error.is_temporary() && error.retry_after() == Some(Duration::from_secs(1)));
    f.work.seal().await.expect("sealed");
    let receipt = ada.receipt(id).await.expect("a receipt");
    assert_eq!(receipt.digest, preview.digest);
    assert!(ada.verify().await.expect("verified").intact);
}

/// Each method reaches its operation: what it answers is read as its type.
async fn every_operation_has_a_method(f: Fixture) {
    let server = Served::start(&f, 0).await;
    let (ada, agent) = (server.by("user:ada"), server.by("agent:a-1"));
    let order = Proposal::new("translation", json!({"texts": ["a", "b", "c", "d", "e"]}));
    assert_eq!(ada.plan(&order).await.expect("a plan").items.len(), 5);
    let many = ProposeManyRequest { orders: vec![order.clone()], all_or_none: false };
    let done = ada.propose_many(&many).await.expect("proposed");
    let id = done.outcomes[0].proposed.as_ref().expect("an order").order.id;
    let leases = agent.checkout(&wanted()).await.expect("leased").leases;
    agent.heartbeat(leases[0].id).await.expect("extended");
    let beats = agent.heartbeat_many(&[leases[1].id, Uuid::nil()]).await.expect("extended");
    assert_eq!(beats.outcomes.iter().filter(|one| one.problem.is_some()).count(), 1);
    let lease = leases[0].id;
    agent.release(&ReleaseRequest { lease, reason: None }).await.expect("released");
    let lease = leases[1].id;
    agent.snooze(&SnoozeRequest { lease, for_ms: 1 }).await.expect("snoozed");
    let (code, message) = ("x".to_owned(), "y".to_owned());
    let failure =
        FailRequest { lease: leases[2].id, code, message, details: None, permanent: true };
    agent.fail(&failure).await.expect("failed");
    agent.submit(&SubmitRequest::new(leases[3].id, json!("x"))).await.expect("submitted");
    let comment = CommentRequest { text: "so".to_owned(), payload: Some(json!([1])) };
    ada.comment(id, &comment).await.expect("commented");
    ada.comment_item(leases[3].item_id, &comment).await.expect("commented");
    assert_eq!(ada.item_results(leases[3].item_id).await.expect("results").results.len(), 1);
    assert_eq!(ada.items([("state", "leased")]).await.expect("items").items.len(), 1);
    assert_eq!(ada.leases([("agent", "a-1")]).await.expect("leases").leases.len(), 1);
    assert_eq!(ada.agents().await.expect("agents").agents[0].id, "a-1");
    assert_eq!(ada.item(leases[4].item_id).await.expect("an item").input, json!("e"));
    assert_eq!(ada.order_items(id, None).await.expect("items").items.len(), 5);
    assert!(!ada.order_events(id, None).await.expect("events").events.is_empty());
    assert_eq!(
        ada.orders([("filter[type]", "translation")]).await.expect("orders").orders.len(),
        1
    );
    assert_eq!(ada.order(id).await.expect("an order").order.id, id);
    assert_eq!(ada.stats().await.expect("stats").orders.len(), 1);
    assert_eq!(ada.order_types().await.expect("types").order_types.len(), 3);
    assert_eq!(ada.order_type("page").await.expect("a type").settings.review.approvals, 2);
    let error = ada.order_type("a/b ?").await.expect_err("none");
    assert_eq!(error.code(), "order_type_not_found");
    assert!(
        ada.transitions().await.expect("tables").orders["queued"].contains(&"failed".to_owned())
    );
    assert_eq!(ada.apply_status(id).await.expect("told").lease, None);
    ada.take_back_apply(id).await.expect("taken back");
    ada.retry(id).await.expect("retried");
    ada.requeue(id, "so").await.expect("requeued");
    ada.clone_order(id, &Default::default()).await.expect("cloned");
    ada.cancel(id, "so").await.expect("cancelled");
    assert_eq!(ada.dead_letter(id, "so").await.expect_err("over").code(), "illegal_transition");
    let error = ada.retry_item(leases[0].item_id).await.expect_err("over");
    assert_eq!(error.code(), "order_state");
    assert!(ada.listeners().await.expect("listeners").listeners.is_empty());
    assert!(!ada.forget_listener("nobody/ ").await.expect("told").known);
    assert!(ada.checkpoints().await.expect("checkpoints").checkpoints.is_empty());
    assert_eq!(ada.ready().await.expect("ready").status, "ok");

    ada.propose(&Proposal::new("article", json!({}))).await.expect("proposed");
    let types = vec!["article".to_owned()];
    let mut got = agent.checkout(&CheckoutRequest { types, ..wanted() }).await.expect("leased");
    let lease = got.leases.remove(0);
    let part = PartRequest {
        lease: lease.id,
        key: "title".to_owned(),
        seq: None,
        payload: json!("t"),
        evidence: None,
        notes: None,
        draft: false,
    };
    agent.submit_part(&part).await.expect("kept");
    let found = agent.parts(lease.item_id, [("bodies", "true")]).await.expect("parts").parts;
    assert_eq!(found[0].body.as_ref().expect("a body").payload, json!("t"));
    let mode = FinalizeMode::Strict;
    let finalize = FinalizeRequest { lease: lease.id, mode, evidence: None, notes: None };
    assert_eq!(agent.finalize(&finalize).await.expect("submitted").state, "submitted");
    let (code, message) = ("x".to_owned(), "y".to_owned());
    let errors = vec![ReviewError { code, message, field: None, item: None }];
    let rejection = RejectRequest { errors, ..RejectRequest::default() };
    let rejected =
        server.by("user:bob").reject(lease.order_id, &rejection).await.expect("rejected");
    assert_eq!(rejected.state, "rejected");
    ada.dead_letter(lease.order_id, "so").await.expect("given up");
}

#[tokio::test]
async fn a_stream_goes_on_at_the_next_server() {
    let f = Fixture::new().await;
    let mut server = Served::start(&f, 0).await;
    let port = server.port;
    let ada = server.by("user:ada");
    ada.propose(&Proposal::new("translation", json!({"texts": ["a"]}))).await.expect("proposed");
    f.work.seal().await.expect("sealed");
    let mut stream = ada.stream(EventsWanted::default());
    for position in 1..=2 {
        let event = stream.next().await.expect("an event");
        assert_eq!(event.seal.expect("sealed").position, position);
    }
    // The server is gone; what is sealed meanwhile comes when there is one again at the address.
    server.shutdown.begin();
    (&mut server.task).await.expect("it ends");
    let second = Fixture::again(&f).await;
    second.propose(&["b"]).await;
    second.work.seal().await.expect("sealed");
    let next = tokio::spawn(async move {
        let event = stream.next().await.expect("an event");
        (event, stream.position())
    });
    let _server = Served::start(&second, port).await;
    let next = tokio::time::timeout(Duration::from_secs(30), next).await.expect("in time");
    let (event, position) = next.expect("no panic");
    assert_eq!((event.seal.expect("sealed").position, position), (3, 3));
}

#[tokio::test]
async fn what_is_no_answer_is_told_as_such() {
    let f = Fixture::new().await;
    let server = Served::start(&f, 0).await;
    // A token, where there are none to check it by.
    let token = server.client.clone().token("lw_admin_secret").expect("legal");
    assert_eq!(
        token.orders([("state", "queued")]).await.expect_err("refused").code(),
        "unauthorized"
    );
    assert!(!format!("{token:?} {:?}", token.orders([("a", "b")])).contains("secret"));
    // A server that does not answer in time, and none at all.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", silent.local_addr().expect("bound"));
    let slow = Client::new(&address).expect("an address").timeout(Duration::from_millis(100));
    let error = slow.stats().await.expect_err("silence");
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    assert!(error.is_temporary() && error.code() == "server_unreachable");
    drop(silent);
    let error = slow.stats().timeout(Duration::from_secs(10)).await.expect_err("nobody");
    assert!(matches!(error.kind(), ErrorKind::Unreachable { .. }), "{error}");
    // A long poll may take longer than an answer.
    let quick = server.by("agent:a-1").timeout(Duration::from_millis(700));
    let wait = CheckoutRequest { wait_ms: 1_500, ..CheckoutRequest::default() };
    assert!(quick.checkout(&wait).await.expect("an empty answer").leases.is_empty());
    // Something else that speaks HTTP.
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", other.local_addr().expect("bound"));
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = other.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer =
                "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nno";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let error = Client::new(&address).expect("an address").stats().await.expect_err("no answer");
    assert!(matches!(error.kind(), ErrorKind::Unreadable { status: 404, .. }), "{error}");
}
