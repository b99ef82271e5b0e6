//! The worker processes, and what can be done to them.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use latchwork_lock::provider::Moment;

use super::process_context::{Assignment, ProcessContext};
use super::worker::ASSIGNMENT;
use crate::history::What;
use crate::process::{self, Signal};

/// The workers that live, and what went wrong with those that did not.
pub(super) struct Workers<'a> {
    context: &'a ProcessContext,
    workers: Vec<Worker>,
    started: u32,
    /// Workers that ended as none should.
    troubles: Vec<String>,
}

struct Worker {
    number: u32,
    child: Child,
    stopped: Option<Stop>,
}

/// A worker stands still.
struct Stop {
    since: Moment,
    until: Moment,
    /// It had the backend to itself when it was stopped, and everybody waits for it.
    in_the_way: bool,
}

impl<'a> Workers<'a> {
    pub(super) fn start(context: &'a ProcessContext) -> Self {
        let mut workers =
            Workers { context, workers: Vec::new(), started: 0, troubles: Vec::new() };
        for _ in 0..context.assignment.torture.processes {
            workers.add();
        }
        workers
    }

    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// The place of the worker with this number, if it lives.
    pub(super) fn index_of(&self, number: u32) -> Option<usize> {
        self.workers.iter().position(|worker| worker.number == number)
    }

    fn add(&mut self) {
        self.started += 1;
        let assignment = Assignment { number: self.started, ..self.context.assignment.clone() };
        let errors =
            File::create(self.context.assignment.directory.join(errors(assignment.number)));
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let command = command
            .env(ASSIGNMENT, serde_json::to_string(&assignment).expect("plain data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors.expect("the directory is there"))
            // A terminal's signals are for the supervisor, which tells the others.
            .process_group(0);
        let child = command.spawn().expect("this program can be started");
        self.workers.push(Worker { number: assignment.number, child, stopped: None });
    }

    /// SIGKILL, and another in its place.
    pub(super) fn kill(&mut self, victim: usize) {
        let mut worker = self.workers.swap_remove(victim);
        self.check_exit(&mut worker);
        self.context.record("", 0, What::ProcessEnds { who: worker.number });
        worker.kill();
        if let Some(stop) = worker.stopped.filter(|stop| stop.in_the_way) {
            self.context.record("", 0, What::Stalled { since: stop.since });
        }
        self.add();
    }

    /// SIGSTOP, unless it stands still already. `stuck` tells whether others can still edit.
    pub(super) fn stop(&mut self, victim: usize, span: Duration, stuck: impl FnOnce() -> bool) {
        let since = self.context.now();
        let worker = &mut self.workers[victim];
        if worker.stopped.is_none() {
            self.context.record("", 0, What::ProcessStops { who: worker.number });
            worker.signal(Signal::STOP);
            worker.stopped = Some(Stop { since, until: since.after(span), in_the_way: stuck() });
        }
    }

    /// SIGCONT for all whose time has come.
    pub(super) fn resume_due(&mut self, now: Moment) {
        for worker in &mut self.workers {
            if let Some(stop) = worker.stopped.take_if(|stop| stop.until <= now) {
                worker.signal(Signal::CONT);
                self.context.record("", 0, What::ProcessGoes { who: worker.number });
                if stop.in_the_way {
                    self.context.record("", 0, What::Stalled { since: stop.since });
                }
            }
        }
    }

    /// How many stand still.
    pub(super) fn stopped(&self) -> usize {
        self.workers.iter().filter(|worker| worker.stopped.is_some()).count()
    }

    /// Waits until all have come to their end; one that has not by the deadline hangs.
    pub(super) fn finish(mut self, deadline: Moment) -> Vec<String> {
        self.resume_due(Moment::NEVER);
        for mut worker in std::mem::take(&mut self.workers) {
            while self.context.now() < deadline && worker.ended().is_none() {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.check_exit(&mut worker);
            if worker.ended().is_none() {
                let number = worker.number;
                self.troubles.push(format!("worker {number} did not come to its end"));
                self.context.record("", 0, What::ProcessEnds { who: number });
                worker.kill();
            }
        }
        std::mem::take(&mut self.troubles)
    }

    /// Tells of one that has ended although nobody killed it.
    fn check_exit(&mut self, worker: &mut Worker) {
        let Some(status) = worker.ended().filter(|status| !status.success()) else { return };
        let said =
            std::fs::read_to_string(self.context.assignment.directory.join(errors(worker.number)));
        let said = said.unwrap_or_default();
        self.troubles.push(format!("worker {} ended with {status}:\n{said}", worker.number));
    }
}

fn errors(number: u32) -> String {
    format!("errors-{number:05}.txt")
}

impl Worker {
    fn signal(&self, signal: Signal) {
        // One that has ended needs no signal.
        let _ = process::send(&self.child, signal);
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }
}

/// None of them outlives the supervisor, also where it panics.
impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(Worker::kill);
    }
}
