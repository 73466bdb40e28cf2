//! The terminal while the screen is shown: taken over, and given back whatever happens.
//!
//! It is given back when the guard goes, by a panic on any thread before its message is printed, and, since signals only ask the
//! loop to end, by a signal. Only SIGKILL leaves it as it is; `reset` mends it then.

use std::io::{Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

/// A terminal in raw mode on its other screen.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    /// A signal has come, or something panicked.
    pub(super) must_end: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn take() -> Result<Self> {
        let must_end = Arc::new(AtomicBool::new(false));
        watch_signals(must_end.clone()).context("cannot listen to signals")?;
        let (before, flag) = (std::panic::take_hook(), must_end.clone());
        std::panic::set_hook(Box::new(move |panic| {
            flag.store(true, Ordering::Release);
            give_back();
            before(panic);
        }));
        enable_raw_mode().context("the terminal cannot be taken over")?;
        // From here on the guard undoes what was done.
        let terminal = execute!(stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .inspect_err(|_| give_back())
            .context("the terminal cannot be taken over")?;
        Ok(Self { terminal, must_end })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // A terminal that is gone needs nothing.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

fn watch_signals(flag: Arc<AtomicBool>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("ecotone-top-signals".into()).spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
            let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = kinds.map(signal) else { return };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
            flag.store(true, Ordering::Release);
        });
    })?;
    Ok(())
}
