//! Contenders that take turns.

use std::time::{Duration, Instant};

use crate::Ratio;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How often each contender has its turn.
    pub rounds: usize,
    /// How long one round of all contenders should take; none for a handful of operations.
    pub round: Option<Duration>,
}

impl Scale {
    /// The whole race under `cargo bench`, which says `--bench`. Any other caller only wants to
    /// see that it still runs, so it gets a race of one short round.
    pub fn from_args() -> Self {
        if std::env::args().any(|arg| arg == "--bench") {
            Scale { rounds: 21, round: Some(Duration::from_millis(300)) }
        } else {
            Scale { rounds: 1, round: None }
        }
    }

    /// Whether its figures mean anything.
    pub fn is_whole(&self) -> bool {
        self.round.is_some()
    }

    /// One of two numbers: for the whole race, or for a look.
    pub fn pick(&self, whole: u64, look: u64) -> u64 {
        if self.is_whole() { whole } else { look }
    }
}

/// Whether a part of a bench is wanted: one that is named on the command line, or any if none is.
pub fn wants(part: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|name| name == part)
}

/// Somebody who can do a number of operations.
pub struct Contender<'a> {
    name: &'static str,
    run: Box<dyn FnMut(u64) + 'a>,
}

impl<'a> Contender<'a> {
    /// `run` does as many operations as it is told.
    pub fn new(name: &'static str, run: impl FnMut(u64) + 'a) -> Self {
        Contender { name, run: Box::new(run) }
    }

    fn time(&mut self, operations: u64) -> f64 {
        let begin = Instant::now();
        (self.run)(operations);
        begin.elapsed().as_secs_f64()
    }
}

/// What came of it.
pub struct Race {
    names: Vec<&'static str>,
    rounds: Vec<Vec<f64>>,
    operations: u64,
}

/// Lets all do the same number of operations, turn by turn.
pub fn race(scale: Scale, contenders: &mut [Contender<'_>]) -> Race {
    let operations = calibrate(scale, contenders);
    let count = contenders.len();
    let mut rounds = Vec::with_capacity(scale.rounds);
    for round in 0..scale.rounds {
        let mut times = vec![0.0; count];
        // Another one begins each time, so that none always runs after the same neighbour.
        for turn in 0..count {
            let who = (round + turn) % count;
            times[who] = contenders[who].time(operations);
        }
        rounds.push(times);
    }
    let names = contenders.iter().map(|contender| contender.name).collect();
    Race { names, rounds, operations }
}

/// How many operations make a round as long as wanted. It also warms everybody up.
fn calibrate(scale: Scale, contenders: &mut [Contender<'_>]) -> u64 {
    let mut operations = 64;
    let Some(wanted) = scale.round else { return operations };
    let wanted = wanted.as_secs_f64();
    loop {
        let took: f64 = contenders.iter_mut().map(|contender| contender.time(operations)).sum();
        if took > wanted / 4.0 {
            return (operations as f64 * wanted / took).ceil() as u64;
        }
        operations *= 4;
    }
}

impl Race {
    /// The others, in the order they came in.
    pub fn others(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.names.iter().copied().enumerate().skip(1)
    }

    /// How many times faster the first was than this one.
    pub fn first_faster_than(&self, other: usize) -> Ratio {
        Ratio::of(self.rounds.iter().map(|times| times[other] / times[0]).collect())
    }

    /// How many operations a second one of them did. It says little beyond this machine and hour.
    pub fn per_second(&self, which: usize) -> f64 {
        let rates = self.rounds.iter().map(|times| self.operations as f64 / times[which]);
        Ratio::of(rates.collect()).median
    }

    /// How many times more the first cost than this one.
    pub fn first_costs_of(&self, other: usize) -> Ratio {
        Ratio::of(self.rounds.iter().map(|times| times[0] / times[other]).collect())
    }
}
