//! What this process logs.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// The warnings and errors of this process, since the first call.
#[derive(Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Providers log on threads of their own, so that there is one for all tests of a process.
    pub fn warnings() -> Self {
        static ALL: LazyLock<Captured> = LazyLock::new(|| {
            let captured = Captured::default();
            let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
            warnings.with_writer(captured.clone()).with_ansi(false).init();
            captured
        });
        ALL.clone()
    }

    /// The lines with all of these words.
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned();
        let wanted = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(wanted).map(str::to_owned).collect()
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Captured {
    type Writer = Captured;

    fn make_writer(&self) -> Captured {
        self.clone()
    }
}
