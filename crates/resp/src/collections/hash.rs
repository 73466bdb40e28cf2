//! Hashes: fields with values.
//!
//! A small one is its fields and values, [packed](super::packed): field, value, field, value, in the order in which the fields came. Of a
//! large one the key holds a [`Large`](super::Large) and nothing more, and each field has an entry:
//!
//! ```text
//!  sub-key:  hash:u32 field         value:  the field's value
//! ```
//!
//! See [`by_hash`](super::by_hash).

use super::named::{Kind, Named};
use crate::keyspace::Type;

/// A hash as a command has found it.
pub type Hash<'c> = Named<'c, Fields>;

/// The elements of hashes.
#[derive(Debug)]
pub struct Fields;

impl Kind for Fields {
    const TYPE: Type = Type::Hash;
    const NAME: &'static str = "field";
    const HAS_VALUES: bool = true;
}
