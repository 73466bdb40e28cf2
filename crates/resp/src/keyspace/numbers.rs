//! Numbers of large collections: each is given once in the life of a store.
//!
//! They are set aside in the store by the thousand before they are given. A loss of power that takes the note takes everything written
//! after it as well, so that no number of what is left is given again.

use ecotone_engine::{Error as StoreError, Store};
use parking_lot::Mutex;

use super::group::Waiting;
use super::layout;

/// Set aside at once.
const SET_ASIDE: u64 = 1 << 16;

/// Gives numbers.
#[derive(Debug)]
pub struct Numbers {
    given: Mutex<Given>,
}

#[derive(Debug)]
struct Given {
    next: u64,
    set_aside: u64,
}

impl Numbers {
    /// Goes on behind what was set aside in `store`.
    ///
    /// # Errors
    ///
    /// Those of a read; [`StoreError::Corrupt`] where the note is none.
    pub fn of(store: &Store) -> Result<Self, StoreError> {
        let next = super::read_number(store, "numbers")?.unwrap_or(1);
        Ok(Self { given: Mutex::new(Given { next, set_aside: next }) })
    }

    /// The next number.
    ///
    /// # Errors
    ///
    /// Those of a write, and [`StoreError::WouldWait`] where one is due and the caller does not wait; no number was given.
    pub fn next(&self, store: &Store, waiting: Waiting) -> Result<u64, StoreError> {
        let given = match waiting {
            // Who sets some aside holds it while the store is written.
            Waiting::Never => self.given.try_lock().ok_or(StoreError::WouldWait),
            Waiting::Briefly | Waiting::Allowed => Ok(self.given.lock()),
        };
        let mut given = given?;
        if given.next == given.set_aside {
            if waiting == Waiting::Never {
                return Err(StoreError::WouldWait);
            }
            let set_aside = given.set_aside + SET_ASIDE;
            store.put(&layout::own("numbers"), &set_aside.to_be_bytes())?;
            given.set_aside = set_aside;
        }
        given.next += 1;
        Ok(given.next - 1)
    }
}
