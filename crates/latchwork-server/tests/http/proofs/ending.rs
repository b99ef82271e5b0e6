//! A client that waits at a server does not keep it from ending, and costs it little.

use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::child::{Server, room};
use super::{millis, net, secs};

/// Opens so many long polls for items, waiters for locks and event streams.
async fn open(port: u16, polls: usize, waiters: usize, streams: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for number in 0..polls {
        let actor = format!("latchwork-actor: agent:p-{number}\r\n");
        let body = json!({"wait_ms": 60_000}).to_string();
        open.push(net::send(port, "POST", "/v1/items/checkout", &actor, &body).await);
    }
    for number in 0..waiters {
        let actor = format!("latchwork-actor: agent:w-{number}\r\n");
        let token = format!("{number:032x}");
        let body = json!({"key": "k", "token": token, "wait_ms": 60_000}).to_string();
        open.push(net::send(port, "POST", "/v1/locks/wait", &actor, &body).await);
    }
    for _ in 0..streams {
        let accept = "accept: text/event-stream\r\n";
        open.push(net::send(port, "GET", "/v1/events", accept, "").await);
    }
    open.into_iter().map(|stream| stream.expect("sent")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_and_streams_end_with_the_server() {
    let Some(url) = room().await else { return };
    let server = Server::start(&url);
    let held = json!({"key": "k", "token": "f".repeat(32)});
    net::post(server.port, "/v1/locks/acquire", "holder", &held).await.expect("it answers");
    let open = open(server.port, 100, 20, 100).await;
    tokio::time::sleep(secs(2)).await;
    let took = server.end(Signal::TERM);
    assert!(took < secs(10), "it took {took:?}");
    for mut stream in open {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(secs(5), stream.read_to_end(&mut answer)).await;
        read.expect("it ends").expect("readable");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_polls_and_a_thousand_streams_fit_into_200_mib() {
    let Some(url) = room().await else { return };
    let server = Server::start(&url);
    let held = json!({"key": "k", "token": "f".repeat(32), "ttl_ms": 600_000});
    net::post(server.port, "/v1/locks/acquire", "holder", &held).await.expect("it answers");
    let before = server.resident();
    let open = open(server.port, 500, 500, 1_000).await;
    let mut most = 0;
    for _ in 0..20 {
        tokio::time::sleep(millis(200)).await;
        most = most.max(server.resident());
    }
    println!("resident: {} MiB before, {} MiB with all", before >> 20, most >> 20);
    assert!(most < 200 << 20, "{} MiB", most >> 20);
    let (status, _) = net::get(server.port, "/healthz").await.expect("it answers");
    assert_eq!((status, open.len()), (200, 2_000));
    server.end(Signal::TERM);
}
