//! Between a client and the server: it counts how often the talk turns from the one to the other,
//! and may hold the first message of an edit, or keep the last one to itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::backend::mysql::place;
use crate::support::{eventually, millis};

pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether the client spoke last.
    asked: AtomicBool,
    turns: AtomicU64,
    edits: AtomicU64,
    swallows: AtomicBool,
    swallowed: AtomicBool,
    holds: watch::Sender<bool>,
    held: AtomicBool,
}

impl Relay {
    pub(crate) async fn start(server: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(State::default());
        let (server, inner) = (server.to_owned(), state.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("the server is there");
                tokio::spawn(pass(client, server, inner.clone()));
            }
        });
        Relay { address, state }
    }

    /// The same database by this way, in words that can be read: without TLS, which some servers
    /// offer to everybody.
    pub(crate) fn leads_to(&self, address: &str) -> String {
        let through = address.replace(place(address), &self.address.to_string());
        format!("{through}?ssl-mode=DISABLED")
    }

    /// How often the server was asked something.
    pub(crate) fn turns(&self) -> u64 {
        self.state.turns.load(Ordering::SeqCst)
    }

    /// How many changes the rules have decided on this side.
    pub(crate) fn edits(&self) -> u64 {
        self.state.edits.load(Ordering::SeqCst)
    }

    /// Ends when nothing was said for a while.
    pub(crate) async fn quiet(&self) {
        let mut last = u64::MAX;
        eventually("silence", async || {
            tokio::time::sleep(millis(300)).await;
            std::mem::replace(&mut last, self.turns()) == self.turns()
        })
        .await;
    }

    /// From now on nothing more of a connection is passed on from its first COMMIT on.
    pub(crate) fn swallow_commits(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }

    /// From now on the first message of an edit is held.
    pub(crate) fn hold_edits(&self) {
        self.state.holds.send_replace(true);
    }

    /// Whether an edit is held.
    pub(crate) fn holds_an_edit(&self) -> bool {
        self.state.held.load(Ordering::SeqCst)
    }

    /// Passes on the edit that is held, and all that come.
    pub(crate) fn pass_edits(&self) {
        self.state.holds.send_replace(false);
    }

    /// Ends when a commit was kept back.
    pub(crate) async fn swallowed(&self) {
        eventually("a commit", async || self.state.swallowed.load(Ordering::SeqCst)).await;
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asks = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            // The driver's own ping, when a connection goes back into its pool; nobody waits for it.
            let is_ping = buffer[..length] == [1, 0, 0, 0, 0x0e];
            if !is_ping && !state.asked.swap(true, Ordering::SeqCst) {
                state.turns.fetch_add(1, Ordering::SeqCst);
            }
            let says = |word: &[u8]| buffer[..length].windows(word.len()).any(|part| part == word);
            // The first words of an edit; its last ones are in another message.
            if says(b"SESSION wait_timeout = 5") {
                state.edits.fetch_add(1, Ordering::SeqCst);
                let mut holds = state.holds.subscribe();
                if *holds.borrow_and_update() {
                    state.held.store(true, Ordering::SeqCst);
                    let _ = holds.wait_for(|holds| !holds).await;
                }
            }
            if says(b"COMMIT") && state.swallows.load(Ordering::SeqCst) {
                state.swallowed.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            if to_server.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            state.asked.store(false, Ordering::SeqCst);
            if to_client.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = asks => {}
        () = answers => {}
    }
}
