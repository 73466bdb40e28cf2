//! A filter of the keys of a table, which it keeps as property [`PROPERTY`] where duplicates are counted by filters.

use std::sync::Arc;

/// The name of the property.
pub(crate) const PROPERTY: &str = "ecotone.filter";

/// The hashes of all keys of a table, while it is new: what the filters of lower levels are asked for.
pub(crate) type KeyHashes = Arc<[u64]>;
