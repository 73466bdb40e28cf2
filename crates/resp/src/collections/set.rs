//! Sets: members, each once.
//!
//! A small one is its members, [packed](super::packed) in the order in which they came. Of a large one the key holds a
//! [`Large`](super::Large) and nothing more, and each member has an entry:
//!
//! ```text
//!  sub-key:  hash:u32 member        value:  none
//! ```
//!
//! See [`by_hash`](super::by_hash).

use super::named::{Kind, Named};
use crate::error::Outcome;
use crate::keyspace::{Keys, Type};

/// A set as a command has found it: names without values.
pub type Set<'c> = Named<'c, Members>;

/// The elements of sets.
#[derive(Debug)]
pub struct Members;

impl Kind for Members {
    const TYPE: Type = Type::Set;
    const NAME: &'static str = "member";
    const HAS_VALUES: bool = false;
}

impl<'c> Set<'c> {
    /// Adds members to the set under `key`, whose slot is held and where `set` was found. Tells how many are new.
    ///
    /// # Errors
    ///
    /// Those of [`Named::put`].
    pub fn add(keys: &mut Keys<'c>, key: &[u8], set: Option<&Self>, new: &[&[u8]]) -> Outcome<u64> {
        Self::put(keys, key, set, new.iter().map(|member| [*member, b""]))
    }

    /// Puts a set of `members`, which are different, under `key`, whose slot is held. Whatever was there is deleted, also where there are no
    /// members.
    ///
    /// # Errors
    ///
    /// Those of [`Named::put`].
    pub fn replace(keys: &mut Keys<'c>, key: &[u8], members: &[&[u8]]) -> Outcome {
        if members.is_empty() {
            keys.delete(key)?;
            return Ok(());
        }
        let old = keys.standing(key)?;
        Self::add(keys, key, None, members)?;
        if let Some(old) = old {
            keys.give_up(old);
        }
        Ok(())
    }
}
