//! Any provider behind one type, so that a case need not be generic.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_lock::{
    AcquireRequest, Acquired, Capabilities, Clock, Fence, Grant, Holder, Inspection, Key,
    LockProvider, Page, PageRequest, Proof, Result, Token,
};

/// One connection to the backend under test: "another process" as far as the backend can tell.
///
/// It is a provider itself, so it can be wrapped, given to [`Locks`](latchwork_lock::Locks), or
/// asked at the port. Clones are the same connection.
#[derive(Clone)]
pub struct Client(Arc<dyn Port>);

impl Client {
    pub(super) fn new(provider: impl LockProvider) -> Self {
        Client(Arc::new(provider))
    }
}

/// [`LockProvider`] with boxed futures.
trait Port: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn clock(&self) -> Arc<dyn Clock>;
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>>;
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>>;
    fn release_later(&self, proof: Proof<'_>);
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired>>;
    fn renew<'a>(&'a self, proof: Proof<'a>, ttl: Duration) -> BoxFuture<'a, Result<bool>>;
    fn release<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>>;
    fn hand_over<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>>;
    fn rotate<'a>(
        &'a self,
        proof: Proof<'a>,
        fresh: Token,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Grant>>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Inspection>>;
    fn list<'a>(&'a self, prefix: &'a str, page: &'a PageRequest) -> BoxFuture<'a, Result<Page>>;
    fn break_lock<'a>(
        &'a self,
        key: &'a Key,
        fence: Option<Fence>,
    ) -> BoxFuture<'a, Result<Vec<Holder>>>;
    fn close(&self) -> BoxFuture<'_, ()>;
}

impl<P: LockProvider> Port for P {
    fn name(&self) -> &'static str {
        LockProvider::name(self)
    }
    fn capabilities(&self) -> Capabilities {
        LockProvider::capabilities(self)
    }
    fn clock(&self) -> Arc<dyn Clock> {
        LockProvider::clock(self)
    }
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        LockProvider::poll_acquire(self, request, again, waker)
    }
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        LockProvider::release_now(self, proof)
    }
    fn release_later(&self, proof: Proof<'_>) {
        LockProvider::release_later(self, proof);
    }
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(LockProvider::acquire(self, request))
    }
    fn renew<'a>(&'a self, proof: Proof<'a>, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::renew(self, proof, ttl))
    }
    fn release<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::release(self, proof))
    }
    fn hand_over<'a>(&'a self, proof: Proof<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(LockProvider::hand_over(self, proof))
    }
    fn rotate<'a>(
        &'a self,
        proof: Proof<'a>,
        fresh: Token,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(LockProvider::rotate(self, proof, fresh, ttl))
    }
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Inspection>> {
        Box::pin(LockProvider::inspect(self, key))
    }
    fn list<'a>(&'a self, prefix: &'a str, page: &'a PageRequest) -> BoxFuture<'a, Result<Page>> {
        Box::pin(LockProvider::list(self, prefix, page))
    }
    fn break_lock<'a>(
        &'a self,
        key: &'a Key,
        fence: Option<Fence>,
    ) -> BoxFuture<'a, Result<Vec<Holder>>> {
        Box::pin(LockProvider::break_lock(self, key, fence))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(LockProvider::close(self))
    }
}

impl LockProvider for Client {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        self.0.poll_acquire(request, again, waker)
    }
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        self.0.release_now(proof)
    }
    fn release_later(&self, proof: Proof<'_>) {
        self.0.release_later(proof);
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        self.0.acquire(request).await
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.0.renew(proof, ttl).await
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.0.release(proof).await
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        self.0.hand_over(proof).await
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        self.0.rotate(proof, fresh, ttl).await
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.0.inspect(key).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        self.0.list(prefix, page).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.0.break_lock(key, fence).await
    }
    async fn close(&self) {
        self.0.close().await;
    }
}
