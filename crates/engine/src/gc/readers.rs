//! Who may still hold pointers that were read a while ago.
//!
//! An iterator sees the tables that were there when it was made, and follows their pointers as long
//! as it lives. A segment that no table of the moment names is therefore kept until every iterator
//! that was there at that moment is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts readers by the epoch in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readers(Arc<Mutex<Epochs>>);

#[derive(Debug, Default)]
struct Epochs {
    now: u64,
    readers: BTreeMap<u64, usize>,
}

/// A reader that is there. Drop it after the iterator it stands for.
#[derive(Debug)]
pub(crate) struct Reader {
    of: Readers,
    epoch: u64,
}

impl Readers {
    /// A reader comes. Call it before the iterator is made.
    pub(crate) fn enter(&self) -> Reader {
        let mut epochs = self.0.lock();
        let epoch = epochs.now;
        *epochs.readers.entry(epoch).or_default() += 1;
        Reader { of: self.clone(), epoch }
    }

    /// Begins an epoch, and returns the one that ended: the readers there are came in it or before.
    pub(crate) fn next_epoch(&self) -> u64 {
        let mut epochs = self.0.lock();
        epochs.now += 1;
        epochs.now - 1
    }

    /// Whether all readers are gone that came in `epoch` or before.
    pub(crate) fn are_gone(&self, epoch: u64) -> bool {
        self.0.lock().readers.first_key_value().is_none_or(|(oldest, _)| *oldest > epoch)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut epochs = self.of.0.lock();
        if let Some(count) = epochs.readers.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                epochs.readers.remove(&self.epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_over_when_its_last_reader_and_all_before_are_gone() {
        let readers = Readers::default();
        let first = readers.enter();
        let also_first = readers.enter();
        let epoch = readers.next_epoch();
        let second = readers.enter();
        assert!(!readers.are_gone(epoch));
        drop(first);
        assert!(!readers.are_gone(epoch));
        drop(also_first);
        assert!(readers.are_gone(epoch), "those that came later do not count");
        let epoch = readers.next_epoch();
        assert!(!readers.are_gone(epoch));
        drop(second);
        assert!(readers.are_gone(epoch));
    }
}
