//! Saves that clients ask for (`SAVE`, `BGSAVE`): everything in memory goes into tables, and the
//! log to the device. Where the server has a place for backups `BGSAVE` makes one instead.
//!
//! What a client was told is kept by the log already, as far as the store's durability says. A save
//! is for those who want it now.
//!
//! Invariants: at most one save runs. Failure: a save that fails has lost nothing; the next one
//! tries again, and a backup goes on where it ended.
//!
//! Threads: any. A save in the background has a thread of its own, which ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_engine::Error as StoreError;
use parking_lot::Mutex;

use crate::backups::{BackedUp, BackupError, Backups};
use crate::host::BackupTarget;
use ecotone_keyspace::Keyspace;

/// The saves of a server's stores.
#[derive(Debug)]
pub struct Saves {
    state: Mutex<State>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// The server stops: a backup ends unfinished.
    stops: AtomicBool,
}

#[derive(Debug)]
struct State {
    running_since: Option<Instant>,
    is_in_background: bool,
    last: Saved,
}

/// What is known of saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// When the last one that succeeded ended, in seconds since 1970; before the first, when the
    /// server began.
    pub at_s: u64,
    /// Keys that the stores had written by then, since they were opened.
    pub keys_written: u64,
    /// How long the last one in the background took.
    pub background_took: Option<Duration>,
    /// Whether the last one in the background succeeded.
    pub background_succeeded: bool,
    /// Saves that succeeded.
    pub number: u64,
    /// Since when one runs in the background.
    pub background_since: Option<Instant>,
}

/// Why there was no save.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// One runs.
    #[error("Background save already in progress")]
    Running,
    /// No thread could be had.
    #[error("Background save error: {0}")]
    NoThread(#[from] std::io::Error),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup did not begin.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// It began, and did not succeed.
    #[error("{0}")]
    Copy(String),
}

impl Default for Saves {
    fn default() -> Self {
        let last = Saved {
            at_s: now_s(),
            keys_written: 0,
            background_took: None,
            background_succeeded: true,
            number: 0,
            background_since: None,
        };
        let state = State { running_since: None, is_in_background: false, last };
        Self { state: Mutex::new(state), background: Mutex::default(), stops: AtomicBool::new(false) }
    }
}

impl Saves {
    /// Saves, and waits for it.
    ///
    /// # Errors
    ///
    /// See [`SaveError`].
    pub fn save(self: &Arc<Self>, keyspace: &Keyspace) -> Result<(), SaveError> {
        let mut running = self.begin(false)?;
        Ok(running.write_all(keyspace)?)
    }

    /// Begins a save on a thread of its own, which makes a backup where there is a `target`.
    ///
    /// # Errors
    ///
    /// See [`SaveError`]; what the store says of it comes later, into the log and
    /// [`Saved::background_succeeded`].
    pub fn save_in_background(
        self: &Arc<Self>,
        keyspace: &Arc<Keyspace>,
        backups: &Arc<Backups>,
        target: Option<Arc<dyn BackupTarget>>,
    ) -> Result<(), SaveError> {
        let mut running = self.begin(true)?;
        let (keyspace, backups) = (keyspace.clone(), backups.clone());
        let save = move || {
            let saved = match target {
                Some(target) => running.back_up(&keyspace, &backups, &*target),
                None => running.write_all(&keyspace).map_err(SaveError::from),
            };
            if let Err(error) = saved {
                tracing::warn!(%error, "a save in the background failed");
            }
        };
        let thread = std::thread::Builder::new().name("save".into()).spawn(save)?;
        // The thread before it has ended, or is about to: there is only one save at a time.
        *self.background.lock() = Some(thread);
        Ok(())
    }

    /// Waits for a save that runs in the background: before the store is closed.
    pub fn finish(&self) {
        let thread = self.background.lock().take();
        if let Some(thread) = thread {
            // A save that panicked has told so, and there is nothing to be done about it here.
            let _ = thread.join();
        }
    }

    /// The same, and a backup does not go on: it is finished by the next one.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        self.finish();
    }

    /// What is known of saves.
    pub fn last(&self) -> Saved {
        let state = self.state.lock();
        Saved { background_since: state.running_since.filter(|_| state.is_in_background), ..state.last }
    }

    fn begin(self: &Arc<Self>, is_in_background: bool) -> Result<Running, SaveError> {
        let mut state = self.state.lock();
        if state.running_since.is_some() {
            return Err(SaveError::Running);
        }
        state.running_since = Some(Instant::now());
        state.is_in_background = is_in_background;
        Ok(Running { saves: self.clone(), keys_written: None })
    }
}

/// A save that runs until this is dropped, also by a panic.
struct Running {
    saves: Arc<Saves>,
    /// Once all is written.
    keys_written: Option<u64>,
}

impl Running {
    fn write_all(&mut self, keyspace: &Keyspace) -> Result<(), StoreError> {
        keyspace.stores().try_for_each(|store| store.flush(true))?;
        keyspace.sync()?;
        self.keys_written = Some(keyspace.keys_written());
        Ok(())
    }

    fn back_up(
        &mut self,
        keyspace: &Arc<Keyspace>,
        backups: &Arc<Backups>,
        target: &dyn BackupTarget,
    ) -> Result<(), SaveError> {
        let keys_written = keyspace.keys_written();
        let held = backups.begin(keyspace, BackedUp::OnlyStore)?;
        let id = held.id.as_bytes();
        // It may be given up meanwhile: for want of space, or since it takes too long to write a
        // file.
        let goes_on = || !self.saves.stops.load(Ordering::Relaxed) && backups.find(id).is_ok();
        let copied = target.copy(backups, &held, &goes_on);
        let ended = backups.end(id, copied.is_ok());
        copied.map_err(SaveError::Copy)?;
        ended?;
        self.keys_written = Some(keys_written);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.saves.state.lock();
        let took = state.running_since.take().map(|since| since.elapsed());
        if state.is_in_background {
            state.last.background_took = took;
            state.last.background_succeeded = self.keys_written.is_some();
        }
        if let Some(keys_written) = self.keys_written {
            state.last.at_s = now_s();
            state.last.keys_written = keys_written;
            state.last.number += 1;
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_that_panics_is_over_and_failed() {
        let saves = Arc::new(Saves::default());
        let running = saves.begin(true).unwrap();
        assert!(matches!(saves.begin(false), Err(SaveError::Running)));
        let panicked = std::thread::spawn(move || {
            let _running = running;
            panic!("as a test asks");
        });
        assert!(panicked.join().is_err());
        let last = saves.last();
        assert!(!last.background_succeeded && last.background_since.is_none() && last.number == 0, "{last:?}");
        assert!(saves.begin(false).is_ok());
    }
}
