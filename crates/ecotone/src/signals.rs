//! Signals that end a server: at once while its store is opened, in order from then on. And what
//! the system alone does to a process.
//!
//! An opening may take minutes, of which nothing can be cut short, and nobody has been served yet:
//! nothing is lost that a crash would not lose. A process without these handlers would not hear
//! SIGTERM at all where it is the first one of a container. SIGHUP ends nothing, as with Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Handled while it exists, and until the process ends.
pub(crate) struct Signals {
    wanted: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
}

impl Signals {
    /// Listens from here on. `notify` is called for each signal, on a thread of its own.
    ///
    /// # Errors
    /// The system refuses a handler or the thread.
    pub(crate) fn handle(notify: impl Fn() + Send + 'static) -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut terminate, mut interrupt, mut hang_up) = {
            let _inside = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)
        };
        let signals = Signals { wanted: Arc::default(), is_open: Arc::default() };
        let (wanted, is_open) = (signals.wanted.clone(), signals.is_open.clone());
        std::thread::Builder::new().name("ecotone-signals".into()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        // The terminal that it was started from has gone.
                        _ = hang_up.recv() => continue,
                    }
                    if !is_open.load(Ordering::Acquire) {
                        tracing::info!("the server ends before its store was open");
                        crate::log::flush();
                        end_at_once();
                    }
                    wanted.store(true, Ordering::Release);
                    notify();
                }
            });
        })?;
        Ok(signals)
    }

    /// To be called when the store is open: from then on it is closed in order.
    pub(crate) fn opened(&self) -> Arc<dyn Fn() + Send + Sync> {
        let is_open = self.is_open.clone();
        Arc::new(move || is_open.store(true, Ordering::Release))
    }

    /// Set when a signal has come since.
    pub(crate) fn wanted(&self) -> &Arc<AtomicBool> {
        &self.wanted
    }
}

/// Ends the process without its destructors: other threads are using what those would take down.
fn end_at_once() -> ! {
    // SAFETY: it takes no pointer and does not return.
    unsafe { libc::_exit(0) }
}

/// Stops the process, as SIGTSTP would that nobody handles, until it is continued.
pub(crate) fn stop_this_process() {
    // SAFETY: it takes no pointer.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}
