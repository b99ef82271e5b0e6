//! The connection to the cluster: to one member at a time, and to the next when that one fails.
//!
//! Not to all at once: the driver would then choose a member by chance for each question, also
//! one that is stopped and swallows it. Who is connected to one that answers stays there.
//!
//! Each runtime that asks has a connection of its own, a lane: a connection is driven by the runtime
//! that opened it, and to wake a thread of another one and be woken by it costs as much as half of
//! the way to the server. When a member fails, all lanes leave it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, KvClient, LeaseClient, WatchClient};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::batch::Batch;
use super::config::Address;
use super::error::{NAME, Wrong};
use crate::{Error, ErrorKind, Result};

/// How long an answer may take. An election lasts a second or two.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The oldest server that has all that is asked of it: comparing ranges, and naming watches.
const OLDEST: (u32, u32) = (3, 4);

/// A member that is, or was, there.
pub(super) struct Member {
    pub(super) kv: KvClient,
    pub(super) lease: LeaseClient,
    pub(super) watch: WatchClient,
    client: Client,
    /// Which of the address.
    place: usize,
}

impl Member {
    fn new(client: Client, place: usize) -> Self {
        Member {
            kv: client.kv_client(),
            lease: client.lease_client(),
            watch: client.watch_client(),
            client,
            place,
        }
    }
}

pub(super) struct Link {
    source: Source,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Which member is asked next by whoever has none.
    next: AtomicUsize,
}

enum Source {
    Own(Box<Address>),
    /// The caller's, which finds its members itself.
    Given(Arc<Member>),
}

/// The connection of one runtime.
pub(super) struct Lane {
    pub(super) runtime: Handle,
    pub(super) batch: Batch,
    /// A task that ends with the runtime.
    lives: AbortHandle,
    current: Mutex<Option<Arc<Member>>>,
    /// One connects at a time, and the others take what it got.
    connecting: tokio::sync::Mutex<()>,
    /// Whether anybody has asked of late, and whether somebody [looks](Lane::asked) for that.
    asked: AtomicBool,
    ticks: AtomicBool,
}

impl Lane {
    fn open(runtime: &Handle) -> Arc<Self> {
        Arc::new(Lane {
            runtime: runtime.clone(),
            batch: Batch::default(),
            lives: runtime.spawn(std::future::pending::<()>()).abort_handle(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            asked: AtomicBool::new(false),
            ticks: AtomicBool::new(false),
        })
    }

    /// Somebody asks, and sets a timer for the answer. A runtime that sleeps until a later one is
    /// woken for that, at every question. So while there are questions, it sleeps until a sooner one.
    fn asked(self: &Arc<Self>) {
        self.asked.store(true, Ordering::Relaxed);
        if self.ticks.load(Ordering::Relaxed) || self.ticks.swap(true, Ordering::Relaxed) {
            return;
        }
        let lane = self.clone();
        self.runtime.spawn(async move {
            while lane.asked.swap(false, Ordering::Relaxed) {
                sleep(PATIENCE / 2).await;
            }
            lane.ticks.store(false, Ordering::Relaxed);
        });
    }

    /// Whether this member is asked here.
    fn asks(&self, member: &Arc<Member>) -> bool {
        self.current.lock().as_ref().is_some_and(|current| Arc::ptr_eq(current, member))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.lives.abort();
    }
}

impl Link {
    pub(super) fn own(address: Address) -> Self {
        Self::new(Source::Own(Box::new(address)))
    }

    pub(super) fn given(client: Client) -> Self {
        Self::new(Source::Given(Arc::new(Member::new(client, 0))))
    }

    fn new(source: Source) -> Self {
        Link { source, lanes: Mutex::default(), next: AtomicUsize::new(0) }
    }

    /// The lane of the runtime that we are in.
    pub(super) fn lane(&self) -> Arc<Lane> {
        let here = Handle::current();
        let mut lanes = self.lanes.lock();
        if let Some(known) = lanes.iter().find(|lane| lane.runtime.id() == here.id()) {
            return known.clone();
        }
        // What is left of runtimes that have ended.
        lanes.retain(|lane| !lane.lives.is_finished());
        let lane = Lane::open(&here);
        lanes.push(lane.clone());
        lane
    }

    /// Asks a member, once.
    pub(super) async fn ask<T, F>(
        &self,
        during: &'static str,
        question: impl FnOnce(Arc<Member>) -> F,
    ) -> Result<T, Wrong>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let member = self.member(during).await?;
        let answer = timeout(PATIENCE, question(member.clone())).await;
        let wrong = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Wrong::of(during, error),
            Err(_) => Wrong::silence(during, PATIENCE),
        };
        if matches!(wrong, Wrong::Lost(_)) {
            self.failed(&member);
        }
        Err(wrong)
    }

    /// Asks, and once more where no answer came: another member, or the same by a new
    /// connection. For questions that may be heard twice; the flag says that it may have been.
    pub(super) async fn ask_again<T, F>(
        &self,
        during: &'static str,
        question: impl Fn(Arc<Member>) -> F,
    ) -> Result<(T, bool), Wrong>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        match self.ask(during, &question).await {
            Ok(answer) => Ok((answer, false)),
            Err(Wrong::Lost(error)) => {
                tracing::debug!(%error, "asking another member");
                self.ask(during, &question).await.map(|answer| (answer, true))
            }
            Err(wrong) => Err(wrong),
        }
    }

    /// The member to ask.
    pub(super) async fn member(&self, during: &'static str) -> Result<Arc<Member>, Wrong> {
        let address = match &self.source {
            Source::Own(address) => address,
            Source::Given(member) => return Ok(member.clone()),
        };
        let lane = self.lane();
        lane.asked();
        if let Some(member) = lane.current.lock().clone() {
            return Ok(member);
        }
        let _one_at_a_time = lane.connecting.lock().await;
        if let Some(member) = lane.current.lock().clone() {
            return Ok(member);
        }
        let first = self.next.load(Ordering::Relaxed);
        let mut wrong = None;
        for place in (first..).take(address.endpoints.len()) {
            let place = place % address.endpoints.len();
            match connect(address, place, during).await {
                Ok(member) => {
                    let member = Arc::new(member);
                    *lane.current.lock() = Some(member.clone());
                    self.next.store(place, Ordering::Relaxed);
                    return Ok(member);
                }
                // What will not pass is worth more than what may.
                Err(Wrong::Lost(_)) if matches!(wrong, Some(Wrong::Refused(_))) => {}
                Err(error) => wrong = Some(error),
            }
        }
        self.next.store(first + 1, Ordering::Relaxed);
        Err(wrong.unwrap_or_else(|| Wrong::silence(during, PATIENCE)))
    }

    /// Whether this member is still one that is asked.
    pub(super) fn is_current(&self, member: &Arc<Member>) -> bool {
        match self.source {
            Source::Own(_) => self.lanes.lock().iter().any(|lane| lane.asks(member)),
            Source::Given(_) => true,
        }
    }

    /// A member did not answer: all shall ask the next one.
    pub(super) fn failed(&self, member: &Arc<Member>) {
        if let Source::Own(_) = self.source {
            let lanes = self.lanes.lock();
            // Who was left already, is not left again.
            if lanes.iter().any(|lane| lane.asks(member)) {
                for lane in &*lanes {
                    lane.current.lock().take_if(|current| current.place == member.place);
                }
                self.next.store(member.place + 1, Ordering::Relaxed);
            }
        }
    }

    /// Refuses what is no etcd, or one that is too old, or that does not let us in.
    pub(super) async fn check(&self, during: &'static str) -> Result<()> {
        let status = self
            .ask_again(during, async |member: Arc<Member>| member.client.clone().status().await);
        let (status, _) = status.await.map_err(|wrong| self.hinted(wrong.error(during)))?;
        check_version(during, status.version())?;
        // The status is told to anybody; this is not.
        let probe = self.ask_again(during, async |member: Arc<Member>| {
            member.kv.clone().get("latchwork", None).await
        });
        match probe.await {
            // Rights may be for other names; they are looked at where they are needed.
            Err(Wrong::Refused(error)) if error.to_string().contains("permission denied") => Ok(()),
            other => other.map(drop).map_err(|wrong| wrong.error(during)),
        }
    }

    /// A server that wants no TLS, or a certificate, may just hang up: that looks like an outage.
    fn hinted(&self, error: Error) -> Error {
        let tls = matches!(&self.source, Source::Own(address) if address.is_tls());
        let ErrorKind::Unavailable { during, reason, .. } = error.kind() else { return error };
        const PLAIN: &str = "does the server speak TLS? If not, write etcd:// and not etcds://";
        const CERTIFICATE: &str = "a server that demands a client certificate does this too: give it \
            one with cert=FILE and key=FILE, signed by its own authority";
        let hint = match reason {
            _ if !tls => return error,
            reason if reason.contains("handshake eof") => PLAIN.to_owned(),
            // One who hangs up on what it does not understand may be quicker than its own words.
            reason if reason.contains("reset") => format!("{PLAIN}; {CERTIFICATE}"),
            reason if reason.contains("closed") => CERTIFICATE.to_owned(),
            _ => return error,
        };
        Error::unavailable(NAME, during, format!("{reason}; {hint}"), None)
    }
}

async fn connect(address: &Address, place: usize, during: &'static str) -> Result<Member, Wrong> {
    let endpoint = &address.endpoints[place];
    // This opens no connection yet, unless there is a password to show.
    let connecting = Client::connect([endpoint], Some(address.options.clone()));
    match timeout(PATIENCE, connecting).await {
        Ok(Ok(client)) => Ok(Member::new(client, place)),
        Ok(Err(error)) => Err(Wrong::of(during, error)),
        Err(_) => Err(Wrong::silence(during, PATIENCE)),
    }
}

fn check_version(during: &'static str, version: &str) -> Result<()> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found >= OLDEST {
        return Ok(());
    }
    let (major, minor) = OLDEST;
    let reason = format!("it is etcd {version}, and {major}.{minor} or newer is needed");
    Err(Error::backend(NAME, during, reason, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused() {
        for old in ["3.3.27", "2.3.8", "0.4", ""] {
            let error = check_version("connecting", old).expect_err(old);
            assert_eq!(error.code(), "lock_backend");
            assert!(error.to_string().contains("3.4 or newer"), "{error}");
        }
        for new in ["3.4.23", "3.5.1", "3.6.0-rc.1", "4.0"] {
            check_version("connecting", new).expect(new);
        }
    }
}
