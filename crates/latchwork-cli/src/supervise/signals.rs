//! The signals that the supervisor hears.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blockable};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Passed on to the command's group. The first three are asked for by people, shells and
/// init systems; the others would kill the supervisor if it did not hear them.
const FORWARDED: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The signals that came, one at a time.
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Listens from now on, but not for what the caller of this program had switched off:
    /// `nohup` must go on working.
    pub(crate) fn listen() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = mask(&status, "SigIgn:");
        let wanted = FORWARDED.into_iter().filter(|signal| !has(ignored, *signal));
        let streams = wanted
            .chain([Signal::CHILD])
            .map(|wanted| Ok((wanted, signal(SignalKind::from_raw(wanted.as_raw()))?)));
        streams.collect::<io::Result<_>>().map(Signals)
    }

    /// The next signal.
    ///
    /// Cancel safe: one that was not returned is returned by the next call.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks us to end or to tell somebody.
    pub(crate) async fn next_request(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::CHILD => {}
                request => return request,
            }
        }
    }
}

/// A set of signals in `/proc/PID/status`.
pub(super) fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a signal is in a set.
pub(super) fn has(mask: u64, signal: Signal) -> bool {
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Makes Ctrl-Z and the terminal's stop signals pass us by, since a supervisor that is stopped
/// does not renew, and returns the mask from before, for the command. To be called before any
/// thread is started: each has a mask of its own.
pub(crate) fn block_job_control() -> io::Result<SigSet> {
    let stops = [Blockable::SIGTSTP, Blockable::SIGTTIN, Blockable::SIGTTOU];
    let stops: SigSet = stops.into_iter().collect();
    Ok(stops.thread_swap_mask(SigmaskHow::SIG_BLOCK)?)
}

/// Passes a key such as Ctrl-C on to those whom it would have reached if the terminal had not been
/// lent: the script that runs us, say. They only end if they hear it themselves.
pub(crate) fn signal_own_group(signal: Signal) {
    let _ = rustix::process::kill_current_process_group(signal);
}

/// Ends this program by the signal, so that a shell which runs it in a loop ends too.
pub(crate) fn die_of(signal: Signal) -> std::process::ExitCode {
    let number = signal.as_raw();
    let _ = signal_hook::low_level::emulate_default_handler(number);
    std::process::ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_signals_are_read() {
        let set = mask("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", "SigIgn:");
        assert!(has(set, Signal::HUP) && has(set, Signal::PIPE) && !has(set, Signal::INT));
        assert_eq!(mask("", "SigIgn:"), 0);
    }
}
