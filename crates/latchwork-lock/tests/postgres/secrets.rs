//! No password and no token in anything that is said: messages, logs, or what Debug shows.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use latchwork_lock::{Locks, PostgresLockProvider};
use tracing_subscriber::fmt::MakeWriter;

use crate::support::backend::postgres::{place, test_database};
use crate::support::{waiter, waiting};

/// Everything that was logged by anybody in this process.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Said {
    type Writer = Said;

    fn make_writer(&self) -> Said {
        self.clone()
    }
}

pub(crate) async fn no_secret_is_ever_said() {
    const WRONG: &str = "hush-hush-4711";
    let said = Said::default();
    let all = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    all.with_writer(said.clone()).with_ansi(false).init();

    let address = test_database().await;
    let password = address.split([':', '@']).nth(2).expect("user:password@").to_owned();
    assert!(password.len() > 8, "one that can be looked for");
    let mut texts = Vec::new();
    let provider = PostgresLockProvider::connect(&address).await.expect("there");
    texts.push(format!("{provider:?}"));
    let locks = Locks::new(provider);
    let guard = locks.lock("key").acquire().await.expect("free");
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    texts.push(format!("{locks:?} {guard:?} {:?}", guard.state()));
    let token = {
        let lease = guard.into_lease().await.expect("held");
        texts.push(format!("{lease:?}"));
        let token = lease.token.expose();
        locks.resume(lease).await.expect("held").release().await.expect("held");
        token
    };
    next.await.expect("no panic").release().await.expect("held");
    for bad in [
        address.replace(&password, WRONG),
        format!("postgres://postgres:{WRONG}@127.0.0.1:1/postgres"),
        format!("postgres://postgres:{WRONG}@{}/nowhere?password={WRONG}", place(&address)),
        format!("postgres://postgres:{WRONG}@{}/postgres?passwort={WRONG}", place(&address)),
        format!("postgres://postgres:{WRONG}@not a host/postgres"),
        format!("postgres://postgres:{WRONG}@{}/x?sslmode={WRONG}", place(&address)),
        format!("postgres://postgres:{WRONG}@{}/x?sslmode=require", place(&address)),
    ] {
        let mut error: Option<&dyn std::error::Error> = None;
        let refused = Locks::connect(&bad).await.expect_err("a bad address");
        error.replace(&refused);
        texts.push(format!("{refused:?}"));
        // And all that it was caused by.
        while let Some(cause) = error {
            texts.push(cause.to_string());
            error = cause.source();
        }
    }
    locks.close().await;
    let logged = String::from_utf8(said.0.lock().expect("no panic").clone()).expect("text");
    assert!(logged.contains("TRACE") || logged.contains("DEBUG"), "nothing was logged");
    texts.push(logged);
    let shapes = [password, WRONG.to_owned(), format!("{token:032x}"), token.to_string()];
    for (text, secret) in texts.iter().flat_map(|text| shapes.iter().map(move |s| (text, s))) {
        if let Some(at) = text.find(secret.as_str()) {
            panic!("a secret was said: …{}", &text[at.saturating_sub(200)..at]);
        }
    }
}
