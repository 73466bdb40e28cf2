//! The checks without which this crate must not be used.
//!
//! The shim is compiled against the headers of one RocksDB and mirrors two structs that are private
//! to its C API (`rocksdb_t`, `rocksdb_env_t`). [`self_test`] proves, in the process that runs,
//! that library and headers are the same version and that the mirrors read what the C API wrote.

use std::fmt;

use crate::{Error, Result};

/// A version of RocksDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RocksDbVersion {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Patch number.
    pub patch: u32,
}

impl fmt::Display for RocksDbVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The major and minor number that the shim was written for.
pub const SUPPORTED: (u32, u32) = (11, 12);

/// The version of the headers that the shim was compiled with.
#[must_use]
pub fn headers() -> RocksDbVersion {
    probe::headers()
}

/// The version of the library that is linked.
#[must_use]
pub fn library() -> RocksDbVersion {
    probe::library()
}

/// Checks versions and mirrored structs. Cheap (microseconds) and without side effects; call it
/// before opening a store.
///
/// # Errors
///
/// [`Error::Unfit`] when this RocksDB is not the one that the shim was written for.
pub fn self_test() -> Result<()> {
    let (headers, library) = (headers(), library());
    if (headers.major, headers.minor) != SUPPORTED {
        let (major, minor) = SUPPORTED;
        return Err(Error::Unfit(format!("compiled with headers of {headers}, written for {major}.{minor}")));
    }
    if headers != library {
        return Err(Error::Unfit(format!("compiled with headers of {headers}, linked with {library}")));
    }
    probe::mirrors()
}

#[allow(unsafe_code)] // makes and frees handles of RocksDB's C API
mod probe;
