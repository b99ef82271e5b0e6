//! Every control, before a server that says everything again.

use std::io::{ErrorKind, Result};
use std::time::Duration;

use latchwork_lock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Direction, Flow, Proxy};

/// How long one waits for what must not come.
const NEVER: Duration = Duration::from_millis(150);
/// How long for what must come, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

async fn before_echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    Proxy::before(address).await.expect("a port")
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.expect("it listens")
}

async fn send(stream: &mut TcpStream, word: &str) {
    stream.write_all(word.as_bytes()).await.expect("sent");
}

async fn receive(stream: &mut TcpStream) -> Result<String> {
    let mut word = [0; 64];
    let read = timeout(SOON, stream.read(&mut word)).await.expect("not within ten seconds")?;
    Ok(String::from_utf8_lossy(&word[..read]).into_owned())
}

/// Nothing comes, and not the end either.
async fn silent(stream: &mut TcpStream) -> bool {
    let mut word = [0; 64];
    timeout(NEVER, stream.read(&mut word)).await.is_err()
}

#[tokio::test]
async fn it_passes_and_counts() {
    let proxy = before_echo().await;
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    assert_eq!(proxy.counts().open, 1);
    stream.shutdown().await.expect("ended");
    assert_eq!(receive(&mut stream).await.expect("the end comes through"), "");
    assert_eq!(proxy.counts().open, 0);
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.dropped), (1, 0));
    assert_eq!((counts.to_server, counts.to_client), (5, 5));
}

#[tokio::test]
async fn each_direction_is_delayed() {
    let span = Duration::from_millis(200);
    for direction in [Direction::ToServer, Direction::ToClient] {
        let proxy = before_echo().await;
        let mut stream = connect(&proxy).await;
        proxy.set(direction, Flow::Delay(span));
        let began = SystemClock.now();
        send(&mut stream, "hello").await;
        assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
        let took = SystemClock.now().since(began);
        assert!(took >= span, "{direction:?}: {took:?}");
        proxy.set(direction, Flow::Pass);
        send(&mut stream, "again").await;
        assert_eq!(receive(&mut stream).await.expect("an answer"), "again");
    }
}

#[tokio::test]
async fn each_direction_is_dropped() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let proxy = before_echo().await;
        let mut stream = connect(&proxy).await;
        proxy.set(direction, Flow::Drop);
        send(&mut stream, "lost").await;
        assert!(silent(&mut stream).await, "{direction:?}");
        assert_eq!(proxy.counts().dropped, 4);
        // The server has it, if only the answer was lost.
        let arrived = if direction == Direction::ToClient { 4 } else { 0 };
        assert_eq!(proxy.counts().to_server, arrived);
        proxy.pass().await.expect("it listens");
        send(&mut stream, "hello").await;
        assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    }
}

#[tokio::test]
async fn a_black_hole_keeps_old_and_new_connections() {
    let proxy = before_echo().await;
    let mut old = connect(&proxy).await;
    send(&mut old, "hello").await;
    assert_eq!(receive(&mut old).await.expect("an answer"), "hello");
    proxy.black_hole();
    let mut new = connect(&proxy).await;
    send(&mut old, "lost").await;
    send(&mut new, "lost").await;
    assert!(silent(&mut old).await && silent(&mut new).await);
    new.shutdown().await.expect("ended");
    assert!(silent(&mut new).await, "its end is not answered either");
    assert_eq!(proxy.counts().to_server, 5);
    proxy.pass().await.expect("it listens");
    send(&mut old, "again").await;
    assert_eq!(receive(&mut old).await.expect("an answer"), "again");
    assert!(silent(&mut new).await, "what was led nowhere stays there");
    proxy.cut();
    assert!(receive(&mut new).await.is_err(), "but it can be cut");
}

#[tokio::test]
async fn a_cut_is_a_reset_and_new_connections_work() {
    let proxy = before_echo().await;
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    proxy.cut();
    let error = receive(&mut stream).await.expect_err("cut");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    assert_eq!(proxy.counts().connections, 2);
}

#[tokio::test]
async fn new_connections_are_refused_and_old_ones_go_on() {
    let proxy = before_echo().await;
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.address()).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    send(&mut stream, "again").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "again");
    proxy.pass().await.expect("the port is still ours");
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
}

#[tokio::test]
async fn its_end_is_the_end_of_its_connections() {
    let proxy = before_echo().await;
    let mut stream = connect(&proxy).await;
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    drop(proxy);
    assert!(receive(&mut stream).await.is_err());
}

#[tokio::test]
async fn what_is_stranded_is_silent_for_ever_and_new_connections_work() {
    let proxy = before_echo().await;
    let mut old = connect(&proxy).await;
    send(&mut old, "hello").await;
    assert_eq!(receive(&mut old).await.expect("an answer"), "hello");
    proxy.silence_open();
    let mut new = connect(&proxy).await;
    send(&mut new, "hello").await;
    assert_eq!(receive(&mut new).await.expect("an answer"), "hello");
    proxy.pass().await.expect("it listens");
    send(&mut old, "lost").await;
    assert!(silent(&mut old).await);
    drop(old);
    proxy.silence_open();
    send(&mut new, "lost").await;
    assert!(silent(&mut new).await);
}

#[tokio::test]
async fn answers_are_lost_from_a_number_on() {
    let proxy = before_echo().await;
    let mut stream = connect(&proxy).await;
    proxy.pass_answers(1);
    send(&mut stream, "hello").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "hello");
    send(&mut stream, "lost").await;
    assert!(silent(&mut stream).await);
    assert_eq!(proxy.counts().to_server, 9);
    proxy.pass().await.expect("it listens");
    send(&mut stream, "again").await;
    assert_eq!(receive(&mut stream).await.expect("an answer"), "again");
}
