//! A thread that works for a store until it is asked to end.

use std::io;
use std::thread::{Builder, JoinHandle};

/// The thread, while it lives: dropping this asks it to end, and waits until it has.
pub(crate) struct BackgroundThread {
    name: &'static str,
    ask: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Runs `run` on a thread of this name, which ends soon after `ask_to_stop` was called.
    pub(crate) fn start(
        name: &'static str,
        ask_to_stop: impl Fn() + Send + Sync + 'static,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let thread = Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { name, ask: Box::new(ask_to_stop), thread: Some(thread) })
    }

    /// Tells the thread to end. A compaction that it waits for must be stopped by the caller.
    pub(crate) fn ask_to_stop(&self) {
        (self.ask)();
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(thread = self.name, "a thread of the store panicked");
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.stop();
    }
}
