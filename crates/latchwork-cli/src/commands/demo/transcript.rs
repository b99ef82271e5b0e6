//! Telling what happens, and stopping when it is not what was promised.

use std::time::Duration;

use latchwork::lock::{Clock as _, SystemClock};

use crate::exit::Failure;
use crate::output::{has_colour, out};

/// The demonstration as it is told.
pub(super) struct Transcript {
    colour: bool,
    sections: usize,
    kept: usize,
}

impl Transcript {
    pub(super) fn new() -> Self {
        Transcript { colour: has_colour(&std::io::stdout()), sections: 0, kept: 0 }
    }

    /// A new chapter, with why it matters.
    pub(super) fn section(&mut self, title: &str, why: &str) {
        self.sections += 1;
        let title = self.paint("1", &format!("{}. {title}", self.sections));
        let why = self.paint("2", why);
        out(&format!("\n{title}\n   {why}\n"));
    }

    /// What happens.
    pub(super) fn write_line(&self, line: &str) {
        out(&format!("   {line}\n"));
    }

    /// What was promised, and whether it is so.
    pub(super) fn promise(&mut self, promise: &str, kept: bool) -> Result<(), Failure> {
        if !kept {
            let cross = self.paint("31", "✗");
            out(&format!(" {cross} {promise}\n"));
            return Err(Failure::internal(format!("the demonstration failed: not so: {promise}")));
        }
        self.kept += 1;
        let tick = self.paint("32", "✓");
        out(&format!(" {tick} {promise}\n"));
        Ok(())
    }

    /// A table or the like, moved in.
    pub(super) fn show(&self, block: &str) {
        for line in block.lines() {
            out(&format!("     {line}\n"));
        }
    }

    pub(super) fn end(&self) {
        let all = format!("All {} promises were kept.", self.kept);
        out(&format!("\n{} Try it: latchwork lock my-job -- sleep 10\n", self.paint("1", &all)));
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Waits until something is so, but not for ever.
pub(super) async fn eventually<F: Future<Output = bool>>(is_so: impl Fn() -> F) -> bool {
    const PATIENCE: Duration = Duration::from_secs(10);
    let deadline = SystemClock.now().after(PATIENCE);
    loop {
        if is_so().await {
            return true;
        }
        if SystemClock.now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
