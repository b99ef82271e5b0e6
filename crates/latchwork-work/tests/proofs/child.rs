//! Another process: this test binary once more, as an agent.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use latchwork_contract::process::{self, Signal};
use latchwork_work::{Checkout, EventFilter, ListenFrom, Submission, WorkManager};
use serde_json::json;

use crate::test_database::{agent, types};
use crate::{millis, secs};

pub(crate) struct Child {
    process: std::process::Child,
    pub(crate) said: Receiver<String>,
}

impl Child {
    /// An agent that leases and submits until it is killed, and says `leased ITEM` before it works.
    pub(crate) fn start(name: &str, url: &str) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .env("LATCHWORK_WORK_CHILD", name)
            .env("LATCHWORK_WORK_URL", url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Child { process, said }
    }

    /// Waits until it has leased something, so that what is done to it hits it with a lease.
    pub(crate) fn leased(&self) {
        while self.said.try_recv().is_ok() {}
        self.said.recv_timeout(secs(60)).expect("it leases something");
    }

    /// Kills it, and tells what it had said until then and nobody has read yet.
    pub(crate) fn kill(mut self) -> Vec<String> {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.said.iter().collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::send(&self.process, signal).expect("alive");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs an agent that does one thing, and dies where an order would follow its items.
pub(crate) fn crash_before_follow(name: &str, url: &str) {
    let mut process = Command::new(std::env::current_exe().expect("this program"));
    process.env("LATCHWORK_WORK_CHILD", format!("crash-{name}")).env("LATCHWORK_WORK_URL", url);
    let ended = process.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("started");
    // By the signal that it sends itself there, and by nothing else.
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&ended),
        Some(9),
        "it comes to that place"
    );
}

/// Ends the process at the first event that says that an order follows its items.
struct EndBeforeFollow;

impl tracing::Subscriber for EndBeforeFollow {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(bool);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                let text = format!("{value:?}");
                self.0 |= field.name() == "message" && text == "an order follows its items";
            }
        }
        let mut found = Message(false);
        event.record(&mut found);
        if found.0 {
            // At once, without anything that a process does when it ends by itself.
            rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).ok();
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

async fn crash(name: &str, work: &WorkManager) {
    tracing::subscriber::set_global_default(EndBeforeFollow).expect("the first one");
    let client = agent(work, "crashing");
    if name == "crash-leases" {
        let _ = client.checkout(Checkout::of_type("job")).await;
    } else {
        let got = client.checkout(Checkout::of_type("job")).await.expect("checked out");
        let _ = client.submit(Submission::new(&got.leases[0], json!(1))).await;
    }
}

pub(crate) async fn play(name: &str) {
    let died = Some(Signal::KILL);
    rustix::process::set_parent_process_death_signal(died).expect("a signal that exists");
    let url = std::env::var("LATCHWORK_WORK_URL").expect("an address");
    let work = loop {
        match WorkManager::builder(types()).connect(&url).await {
            Ok(work) => break work,
            Err(error) => assert!(error.is_temporary(), "{error}"),
        }
        tokio::time::sleep(millis(100)).await;
    };
    if name.starts_with("crash") {
        return crash(name, &work).await;
    }
    if name.starts_with("listener") {
        return listen(&work).await;
    }
    let client = agent(&work, name);
    // A server that is away comes back; a lease that ran out is somebody else's.
    let go_on = |error: latchwork_work::Error| {
        let known = error.is_temporary() || error.code() == "lease_expired";
        assert!(known, "{}: {error}", error.code());
    };
    loop {
        let got = client.checkout(Checkout::of_type("quick").limit(2).wait(secs(1))).await;
        let leases = match got {
            Ok(got) => got.leases,
            Err(error) => {
                go_on(error);
                tokio::time::sleep(millis(50)).await;
                continue;
            }
        };
        for lease in leases {
            println!("leased {}", lease.item_id);
            tokio::time::sleep(millis(20)).await;
            let result = json!({"by": name, "fence": lease.fence});
            if let Err(error) = client.submit(Submission::new(&lease, result)).await {
                go_on(error);
            }
        }
    }
}

/// A listener that says `heard POSITION` of each event before it acknowledges it.
async fn listen(work: &WorkManager) {
    let from = ListenFrom::Oldest;
    let mut listening = work.listen("proof", from, EventFilter::all()).await.expect("it listens");
    loop {
        let event = listening.next().await.expect("an event");
        println!("heard {}", event.seal.expect("sealed").position);
        listening.ack(&event).await.expect("acknowledged");
    }
}
