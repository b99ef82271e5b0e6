//! The server on a socket: streams, their resumption, and the end.

use std::time::Duration;

use latchwork_server::{ServeError, serve};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{AGENT, Fixture};

#[tokio::test]
async fn without_tokens_it_listens_on_loopback_only() {
    let f = Fixture::new().await;
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let refused = serve(listener, f.router.clone(), &f.shutdown).await.expect_err("refused");
    assert!(matches!(refused, ServeError::NotLoopback { .. }), "{refused}");
    assert!(refused.to_string().contains("127.0.0.1"), "{refused}");
}

/// Reads ids of a stream until it ends, or so many have come.
async fn ids(stream: &mut BufReader<TcpStream>, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    let mut line = String::new();
    while ids.len() < count {
        line.clear();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_line(&mut line)).await;
        if read.expect("a line in time").expect("readable") == 0 {
            break;
        }
        if let Some(id) = line.strip_prefix("id:") {
            ids.push(id.trim().parse().expect("a position"));
        }
    }
    ids
}

async fn open(port: u16, headers: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    BufReader::new(stream)
}

#[tokio::test]
async fn a_stream_resumes_without_a_gap_and_ends_with_the_server() {
    let f = Fixture::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (router, shutdown) = (f.router.clone(), f.shutdown.clone());
    let server = tokio::spawn(async move { serve(listener, router, &shutdown).await });

    f.propose(&["a"]).await;
    f.work.seal().await.expect("sealed");
    let mut stream = open(port, "").await;
    assert_eq!(ids(&mut stream, 2).await, [1, 2]);
    drop(stream);
    // While nobody reads, more is sealed; the next stream goes on behind what was seen.
    f.propose(&["b"]).await;
    f.work.seal().await.expect("sealed");
    let mut stream = open(port, "last-event-id: 2\r\n").await;
    assert_eq!(ids(&mut stream, 2).await, [3, 4]);
    f.propose(&["c"]).await;
    f.work.seal().await.expect("sealed");
    assert_eq!(ids(&mut stream, 2).await, [5, 6]);

    // A long poll and a stream wait; both end by themselves, and the server with them.
    let agent = [AGENT];
    for _ in 0..3 {
        f.post_as("/v1/items/checkout", json!({}), &agent).await.ok();
    }
    let poll = f.post_as("/v1/items/checkout", json!({"wait_ms": 50_000}), &agent);
    let end = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        f.shutdown.begin();
    };
    let both = async { tokio::join!(poll, end).0.ok() };
    let polled = tokio::time::timeout(Duration::from_secs(10), both).await.expect("it ends");
    assert_eq!(polled["leases"], json!([]));
    // The checkouts left events that were not sealed; the stream ends without any of them.
    assert_eq!(ids(&mut stream, 1).await, [0_u64; 0]);
    let ended = tokio::time::timeout(Duration::from_secs(10), server).await.expect("it ends");
    ended.expect("no panic").expect("no error");
}

#[tokio::test]
async fn health_is_open_and_says_nothing_else() {
    let f = Fixture::new().await;
    assert_eq!(f.get("/healthz").await.ok(), json!({"status": "ok"}));
    assert_eq!(f.get("/readyz").await.ok(), json!({"status": "ok"}));
    f.shutdown.begin();
    let ending = f.get("/readyz").await;
    ending.refused(503, "server_ending");
    assert_eq!(ending.header("retry-after"), "1");
}

#[tokio::test]
async fn oversized_headers_are_refused() {
    let f = Fixture::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (router, shutdown) = (f.router.clone(), f.shutdown.clone());
    let server = tokio::spawn(async move { serve(listener, router, &shutdown).await });
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let head = format!("GET /healthz HTTP/1.1\r\nx: {}\r\n", "y".repeat(256 << 10));
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    let _ = read.await.expect("it does not hang");
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    f.shutdown.begin();
    server.await.expect("no panic").expect("no error");
}
