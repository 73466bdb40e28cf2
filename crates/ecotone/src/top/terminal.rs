//! The terminal while the screen is shown: taken over, and given back whatever happens.
//!
//! It is given back when the guard goes, by a panic on any thread before its message is printed,
//! and by signals, which only ask the loop to end or to stop for a while. Three things leave it as
//! it is: SIGKILL, SIGSTOP and a crash; `reset` mends it then.

use std::io::{Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::signals::stop_this_process;

/// A terminal in raw mode on its other screen.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Arc<TerminalSignals>,
}

/// What signals and panics say to the loop that draws.
#[derive(Debug, Default)]
struct TerminalSignals {
    /// A signal that ends the program.
    ends: AtomicBool,
    /// Something panicked, and said so.
    panicked: AtomicBool,
    /// The program is to stop until it is continued.
    stops: AtomicBool,
    /// It was stopped, and the terminal may be another's or in another state.
    goes_on: AtomicBool,
}

impl TerminalSignals {
    /// Whether the loop is to end.
    ///
    /// # Errors
    /// It ends because something panicked.
    fn must_end(&self) -> Result<bool> {
        if self.panicked.load(Ordering::Acquire) {
            bail!("a part of this program panicked: what it said is above");
        }
        Ok(self.ends.load(Ordering::Acquire))
    }
}

impl Screen {
    pub(super) fn take() -> Result<Self> {
        let signals = Arc::new(TerminalSignals::default());
        // Before anything is taken over, so that there is no moment at which a signal would leave
        // it.
        watch_signals(signals.clone()).context("cannot listen to signals")?;
        watch_panics(signals.clone(), give_back);
        let terminal = taken_over().inspect_err(|_| give_back()).context("the terminal cannot be taken over")?;
        Ok(Self { terminal, signals })
    }

    /// Does what signals have asked for: whether the loop is to end.
    ///
    /// # Errors
    /// It is to end because something panicked, or the terminal cannot be had back.
    pub(super) fn must_end(&mut self) -> Result<bool> {
        if self.signals.stops.swap(false, Ordering::AcqRel) {
            give_back();
            stop_this_process();
            // Until somebody lets it go on.
            self.signals.goes_on.store(true, Ordering::Release);
        }
        if self.signals.goes_on.swap(false, Ordering::AcqRel) {
            // It gives back first what it believes to have, since the shell has set the terminal up
            // for itself.
            give_back();
            self.terminal = taken_over().context("the terminal cannot be taken over again")?;
        }
        self.signals.must_end()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// A screen that is empty, without asking: a terminal is not asked, since not every one answers.
fn taken_over() -> std::io::Result<Terminal<CrosstermBackend<Stdout>>> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)?;
    Terminal::new(CrosstermBackend::new(stdout()))
}

fn give_back() {
    // A terminal that is gone needs nothing.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

fn watch_panics(signals: Arc<TerminalSignals>, give_back: fn()) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        signals.panicked.store(true, Ordering::Release);
        give_back();
        before(panic);
    }));
}

/// Signals are handled from here on; a thread waits for them.
fn watch_signals(signals: Arc<TerminalSignals>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listen_to = |kind: SignalKind| -> std::io::Result<Signal> {
        let _inside = runtime.enter();
        signal(kind)
    };
    let (mut terminate, mut interrupt) = (listen_to(SignalKind::terminate())?, listen_to(SignalKind::interrupt())?);
    let (mut hangup, mut quit) = (listen_to(SignalKind::hangup())?, listen_to(SignalKind::quit())?);
    let (mut stop, mut go_on) =
        (listen_to(SignalKind::from_raw(libc::SIGTSTP))?, listen_to(SignalKind::from_raw(libc::SIGCONT))?);
    std::thread::Builder::new().name("ecotone-top-signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                let flag = tokio::select! {
                    _ = terminate.recv() => &signals.ends,
                    _ = interrupt.recv() => &signals.ends,
                    _ = hangup.recv() => &signals.ends,
                    _ = quit.recv() => &signals.ends,
                    _ = stop.recv() => &signals.stops,
                    _ = go_on.recv() => &signals.goes_on,
                };
                flag.store(true, Ordering::Release);
            }
        });
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot go on should say where

    use super::*;

    #[test]
    fn a_panic_on_another_thread_ends_the_loop_with_an_error_and_a_signal_without_one() {
        static GIVEN_BACK: AtomicBool = AtomicBool::new(false);
        let signals = Arc::new(TerminalSignals::default());
        assert!(!signals.must_end().unwrap());
        signals.ends.store(true, Ordering::Release);
        assert!(signals.must_end().unwrap());

        let signals = Arc::new(TerminalSignals::default());
        watch_panics(signals.clone(), || GIVEN_BACK.store(true, Ordering::Release));
        assert!(std::thread::spawn(|| panic!("of a test, as it should be")).join().is_err());
        // Others of this process panic as they did.
        drop(std::panic::take_hook());
        assert!(GIVEN_BACK.load(Ordering::Acquire), "the message would be lost with the other screen");
        assert!(signals.must_end().unwrap_err().to_string().contains("panicked"));
    }
}
