//! A listener whose process is killed again and again misses nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use latchwork_work::{Checkout, Submission};
use serde_json::json;

use crate::child::Child;
use crate::test_database::{TestDatabase, agent, maintenance, propose, verified};
use crate::{millis, proofs, secs};

proofs![w14_a_listener_that_is_killed_and_resumes_misses_nothing];

fn position(line: String) -> u64 {
    line.strip_prefix("heard ").expect("a position").parse().expect("a number")
}

/// What a listener says next, unless it says nothing for a while.
fn next_position(child: &Child) -> Option<u64> {
    child.said.recv_timeout(millis(100)).ok().map(position)
}

async fn w14_a_listener_that_is_killed_and_resumes_misses_nothing(database: TestDatabase) {
    const ORDERS: usize = 120;
    let work = database.manager().await;
    let kept = tokio::spawn(maintenance(&work).run());
    let working = {
        let work = work.clone();
        tokio::spawn(async move {
            let client = agent(&work, "agent-1");
            for _ in 0..ORDERS {
                propose(&work, "job", json!({"items": 1})).await;
                let got = client.checkout(Checkout::any()).await.expect("checked out");
                let one = Submission::new(&got.leases[0], json!(1));
                client.submit(one).await.expect("submitted");
                tokio::time::sleep(millis(10)).await;
            }
        })
    };
    let (mut all, mut lives) = (BTreeSet::new(), 0);
    let begun = Instant::now();
    while !working.is_finished() || lives < 8 {
        assert!(begun.elapsed() < secs(100), "it hears something: {} events", all.len());
        let child = Child::start("listener", &database.url);
        let said = tokio::task::block_in_place(|| {
            // Killed in the middle, as soon as it was told some; what it says is in order.
            let mut said = Vec::new();
            let started = Instant::now();
            while said.len() < 30 && started.elapsed() < secs(3) {
                said.extend(next_position(&child));
            }
            // What it has acknowledged it has said, and is not told again: all of it counts.
            said.extend(child.kill().into_iter().map(position));
            said
        });
        assert!(said.windows(2).all(|pair| pair[1] == pair[0] + 1), "{said:?}");
        all.extend(said);
        lives += 1;
    }
    working.await.expect("no panic");
    kept.abort();
    let last = verified(&work).await;
    let child = Child::start("listener", &database.url);
    let begun = Instant::now();
    while !all.contains(&last) {
        assert!(begun.elapsed() < secs(60), "it comes to the end");
        all.extend(tokio::task::block_in_place(|| next_position(&child)));
    }
    assert_eq!(all, (1..=last).collect(), "nothing is missing");
}
