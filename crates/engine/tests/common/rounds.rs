//! What a background sync has made durable, by what was recorded.

use std::path::{Path, PathBuf};

use super::disk::{Change, Recorded};

/// Rounds of the thread of `Durability::EverySecond`. `T` is how far writers are.
///
/// A round covers what was acknowledged before it began, once it has synced the newest WAL, whose
/// name must be durable as well.
#[derive(Debug, Clone, Default)]
pub struct Rounds<T> {
    newest_wal: PathBuf,
    is_named: bool,
    /// How far writers were when the last round began, as long as it has not covered that.
    begun: Option<T>,
    is_covered: bool,
}

impl<T> Rounds<T> {
    /// Whether a round has just covered what it was to: then how far writers were when it began.
    /// `store` is where the store lies, `so_far` how far writers are.
    pub fn hear(&mut self, recorded: &Recorded, store: &Path, so_far: impl FnOnce() -> T) -> Option<T> {
        match &recorded.change {
            Change::Created(path) if path.extension().is_some_and(|end| end == "log") => {
                (self.newest_wal, self.is_named, self.is_covered) = (path.clone(), false, false);
            }
            Change::DirectorySynced(path) => self.is_named |= path == store,
            Change::SyncBegins => (self.begun, self.is_covered) = (Some(so_far()), false),
            Change::Synced(path, _) if recorded.in_background => self.is_covered |= *path == self.newest_wal,
            _ => (),
        }
        self.begun.take_if(|_| self.is_covered && self.is_named)
    }
}
