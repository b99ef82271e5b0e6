//! From what each process wrote to one history.

use std::io::{self, BufRead};

use super::Event;

/// Events of any number of processes, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// A history of events in any order.
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| (event.at, event.process, event.number));
        History { events }
    }

    /// Merges the JSON lines of several processes.
    ///
    /// The last line of each may be cut off, since its writer may have been killed.
    ///
    /// # Errors
    /// When one cannot be read, or another line than the last is not an event.
    pub fn read(files: impl IntoIterator<Item = impl BufRead>) -> io::Result<Self> {
        let mut events = Vec::new();
        for file in files {
            let mut broken = None;
            for line in file.split(b'\n') {
                let line = line?;
                if let Some(error) = broken {
                    return Err(error);
                }
                if line.is_empty() {
                    continue;
                }
                match serde_json::from_slice(&line) {
                    Ok(event) => events.push(event),
                    Err(error) => broken = Some(io::Error::from(error)),
                }
            }
        }
        Ok(History::new(events))
    }

    /// The events, in the order of time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}
