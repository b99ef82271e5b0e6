//! Locks by key in one process: ours, and those of others.
//!
//! All have keys of type `String`. Who needs to own the key is given a copy: that is part of
//! the price of its interface.

use std::future::Future;
use std::sync::Arc;

use latchwork_lock::{InMemoryLockProvider, Locks};

/// One lock by key, of one process.
pub trait Peer: Locking {
    /// As it stands in the table.
    const NAME: &'static str;

    /// An empty set of locks.
    fn new() -> Self;
}

/// Anything that locks by key.
pub trait Locking: Clone + Send + Sync + 'static {
    /// Locks, does what is to be done inside, and unlocks.
    fn with(
        &self,
        key: &str,
        inside: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = ()> + Send;
}

/// Ours through the front door, with token, ttl and fence.
#[derive(Clone)]
pub struct Latchwork(pub Locks);

impl Peer for Latchwork {
    const NAME: &'static str = "latchwork";

    fn new() -> Self {
        Latchwork(Locks::new(InMemoryLockProvider::new()))
    }
}

impl Locking for Latchwork {
    #[expect(clippy::expect_used, reason = "a bench of locks that are not granted is none")]
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let _guard = self.0.lock(key).wait_forever().acquire().await.expect("granted");
        inside.await;
    }
}

/// Ours in a database: the release is awaited, as those do who want to know.
#[derive(Clone)]
pub struct Released(pub Locks);

impl Locking for Released {
    #[expect(clippy::expect_used, reason = "a bench of locks that are not granted is none")]
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let guard = self.0.lock(key).wait_forever().acquire().await.expect("granted");
        inside.await;
        guard.release().await.expect("held to the end");
    }
}

/// `lockable`: a hash map behind one mutex; removes a key with its last guard.
#[derive(Clone)]
pub struct Lockable(Arc<lockable::LockPool<String>>);

impl Peer for Lockable {
    const NAME: &'static str = "lockable";

    fn new() -> Self {
        Lockable(Arc::new(lockable::LockPool::new()))
    }
}

impl Locking for Lockable {
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let _guard = self.0.async_lock(key.to_owned()).await;
        inside.await;
    }
}

/// `keyed-lock`: a hash map behind one mutex; removes a key with its last guard.
#[derive(Clone)]
pub struct KeyedLock(Arc<keyed_lock::r#async::KeyedLock<String>>);

impl Peer for KeyedLock {
    const NAME: &'static str = "keyed-lock";

    fn new() -> Self {
        KeyedLock(Arc::new(keyed_lock::r#async::KeyedLock::new()))
    }
}

impl Locking for KeyedLock {
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let _guard = self.0.lock(key.to_owned()).await;
        inside.await;
    }
}

/// `key-mutex`: a sharded map; removes a key with its last guard.
#[derive(Clone)]
pub struct KeyMutex(Arc<key_mutex::tokio::KeyMutex<String, ()>>);

impl Peer for KeyMutex {
    const NAME: &'static str = "key-mutex";

    fn new() -> Self {
        KeyMutex(Arc::new(key_mutex::tokio::KeyMutex::new()))
    }
}

impl Locking for KeyMutex {
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let _guard = self.0.lock(key.to_owned()).await;
        inside.await;
    }
}

/// For orientation: what many write by hand. It keeps every key for ever, so it saves what the
/// others pay for their promise.
#[derive(Clone)]
pub struct DashMapOfMutexes(Arc<dashmap::DashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Peer for DashMapOfMutexes {
    const NAME: &'static str = "DashMap of Mutex, keeps all";

    fn new() -> Self {
        DashMapOfMutexes(Arc::default())
    }
}

impl Locking for DashMapOfMutexes {
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        // Apart, so that the shard is not locked over the await.
        let known = self.0.get(key).map(|mutex| mutex.clone());
        let mutex = known.unwrap_or_else(|| self.0.entry(key.to_owned()).or_default().clone());
        let _guard = mutex.lock().await;
        inside.await;
    }
}
