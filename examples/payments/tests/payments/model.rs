//! Any sequence of requests gets the answers that a small model foretells.

use std::collections::HashMap;

use latchwork_payments::application::ports::CaptureRepository as _;
use latchwork_payments::application::{Decision, Result};
use latchwork_payments::domain::{PaymentId, PaymentState};
use latchwork_payments::infrastructure::MemoryStore;
use proptest::prelude::*;

use crate::support::{WINDOW, transfer, unlocked};

const PAYMENTS: usize = 3;
const CENTS: i64 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    Capture {
        payment: usize,
        key: u8,
        cents: i64,
    },
    Transfer {
        from: usize,
        to: usize,
        key: u8,
        cents: i64,
    },
    Decline {
        payment: usize,
    },
    /// A quarter of the window goes by.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few values, so that the same ones come again.
    let (payment, key) = (0..PAYMENTS, 0..2_u8);
    let cents = prop_oneof![Just(1), Just(CENTS / 2), Just(CENTS), Just(CENTS + 1)];
    let step = prop_oneof![
        4 => (payment.clone(), key.clone(), cents.clone())
            .prop_map(|(payment, key, cents)| Step::Capture { payment, key, cents }),
        4 => (payment.clone(), payment.clone(), key, cents)
            .prop_map(|(from, to, key, cents)| Step::Transfer { from, to, key, cents }),
        1 => payment.prop_map(|payment| Step::Decline { payment }),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..24)
}

/// What is known of three payments that were authorized at the same time.
struct Model {
    amounts: [i64; PAYMENTS],
    states: [PaymentState; PAYMENTS],
    captures: HashMap<(usize, u8), i64>,
    transfers: HashMap<(usize, u8), (usize, i64)>,
    waited: u32,
}

impl Model {
    /// The answer in a word: "new", "replay", or the code of the refusal.
    fn foretell(&mut self, step: &Step) -> &'static str {
        let closed = self.waited >= 4;
        match *step {
            Step::Capture { payment, key, cents } => {
                match (self.captures.get(&(payment, key)), self.states[payment]) {
                    (Some(stored), _) if *stored == cents => "replay",
                    (Some(_), _) => "idempotency_conflict",
                    (None, PaymentState::Captured) => "payment_already_captured",
                    (None, PaymentState::Failed) => "illegal_transition",
                    _ if closed => "payment_expired",
                    _ if cents > self.amounts[payment] => "amount_exceeds_authorized",
                    _ => {
                        self.captures.insert((payment, key), cents);
                        self.states[payment] = PaymentState::Captured;
                        "new"
                    }
                }
            }
            Step::Transfer { from, to, key, cents } => match self.transfers.get(&(from, key)) {
                _ if from == to => "transfer_to_itself",
                Some(stored) if *stored == (to, cents) => "replay",
                Some(_) => "idempotency_conflict",
                None if self.states[from] != PaymentState::Authorized => "payment_not_authorized",
                None if closed => "payment_expired",
                None if self.states[to] != PaymentState::Authorized => "payment_not_authorized",
                None if cents >= self.amounts[from] => "transfer_too_large",
                None => {
                    self.transfers.insert((from, key), (to, cents));
                    self.amounts[from] -= cents;
                    self.amounts[to] += cents;
                    "new"
                }
            },
            Step::Decline { payment } => match self.states[payment] {
                PaymentState::Authorized => {
                    self.states[payment] = PaymentState::Failed;
                    "new"
                }
                _ => "illegal_transition",
            },
            Step::Wait => {
                self.waited += 1;
                "new"
            }
        }
    }
}

fn word(answer: Result<bool>) -> &'static str {
    match answer {
        Ok(true) => "replay",
        Ok(false) => "new",
        Err(error) => error.code(),
    }
}

async fn play(steps: Vec<Step>) {
    let (world, clock) = unlocked(MemoryStore::new());
    let mut ids: Vec<PaymentId> = Vec::new();
    for _ in 0..PAYMENTS {
        ids.push(world.authorized(CENTS).await);
    }
    let mut model = Model {
        amounts: [CENTS; PAYMENTS],
        states: [PaymentState::Authorized; PAYMENTS],
        captures: HashMap::new(),
        transfers: HashMap::new(),
        waited: 0,
    };
    for step in &steps {
        let foretold = model.foretell(step);
        let answer = match *step {
            Step::Capture { payment, key, cents } => {
                let answer = world.capture(ids[payment], &key.to_string(), cents).await;
                answer.map(|answer| answer.replayed)
            }
            Step::Transfer { from, to, key, cents } => {
                let request = transfer(ids[from], ids[to], &key.to_string(), cents);
                world.service.transfer.execute(request).await.map(|answer| answer.replayed)
            }
            Step::Decline { payment } => {
                let decline = world.service.authorize.execute(ids[payment], Decision::Declined);
                decline.await.map(|_| false)
            }
            Step::Wait => {
                clock.advance(WINDOW / 4);
                Ok(false)
            }
        };
        assert_eq!(word(answer), foretold, "{step:?}");
    }
    for (at, id) in ids.into_iter().enumerate() {
        let payment = world.payment(id).await;
        assert_eq!(payment.data().amount.cents(), model.amounts[at]);
        assert_eq!(payment.state(), model.states[at]);
        let captures = world.store.captures_of(id).await.expect("read");
        let captured: Vec<i64> = captures.iter().map(|capture| capture.amount.cents()).collect();
        let foretold: Vec<i64> = model
            .captures
            .iter()
            .filter(|((of, _), _)| *of == at)
            .map(|(_, cents)| *cents)
            .collect();
        assert!(captured.len() <= 1, "captured once");
        assert_eq!(captured, foretold);
    }
}

proptest! {
    #[test]
    fn answers_are_as_foretold(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(play(steps));
    }
}
