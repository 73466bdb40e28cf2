//! Asks the shim what it was compiled with and whether its mirrors fit.

use super::RocksDbVersion;
use crate::buffer::call_raw;
use crate::{Error, Result, ffi};

pub fn headers() -> RocksDbVersion {
    let mut version = RocksDbVersion { major: 0, minor: 0, patch: 0 };
    // SAFETY: three places to write to.
    unsafe {
        ffi::ecotone_header_version(&raw mut version.major, &raw mut version.minor, &raw mut version.patch);
    }
    version
}

pub fn library() -> RocksDbVersion {
    let mut version = RocksDbVersion { major: 0, minor: 0, patch: 0 };
    // SAFETY: three places to write to.
    unsafe {
        ffi::ecotone_library_version(&raw mut version.major, &raw mut version.minor, &raw mut version.patch);
    }
    version
}

pub fn mirrors() -> Result<()> {
    // SAFETY: makes and frees handles of its own.
    match call_raw(|out| unsafe { ffi::ecotone_check_mirrors(out) }) {
        (ffi::OK, _) => Ok(()),
        (_, out) => Err(Error::Unfit(out.message())),
    }
}
