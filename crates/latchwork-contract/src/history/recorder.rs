//! Writing it down.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use latchwork_lock::{Clock, SystemClock};

use super::{Event, What};

/// Writes the events of one process as JSON lines. Tasks and threads may share it.
pub struct Recorder<W> {
    process: u32,
    sink: Mutex<Sink<W>>,
}

struct Sink<W> {
    number: u64,
    writer: W,
}

impl<W: Write> Recorder<W> {
    /// A recorder for this process.
    pub fn new(writer: W) -> Self {
        Self::of_process(std::process::id(), writer)
    }

    /// The same under a number of your own, since a system gives those of the dead again.
    pub fn of_process(process: u32, writer: W) -> Self {
        let sink = Mutex::new(Sink { number: 0, writer });
        Recorder { process, sink }
    }

    /// Writes an event down, with the time of this call.
    ///
    /// A whole line at once: a process that is killed leaves at most one line in part, its last,
    /// which the reader leaves out.
    ///
    /// # Errors
    /// When the line cannot be written.
    pub fn record(&self, key: &str, request: u64, what: What) -> io::Result<()> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Event {
            // Inside, so that the numbers are in the order of the times.
            at: SystemClock.now(),
            process: self.process,
            number: sink.number,
            key: key.to_owned(),
            request,
            what,
        };
        sink.number += 1;
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        sink.writer.write_all(&line)
    }

    /// Gives the writer back.
    pub fn into_inner(self) -> W {
        self.sink.into_inner().unwrap_or_else(PoisonError::into_inner).writer
    }
}
