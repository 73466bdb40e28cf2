//! The handle of the data column family, kept beside its database.
//!
//! `DB::cf_handle` looks the name up in a map; paying that in every operation would flatter our
//! store, which does not.

#![allow(unsafe_code)] // a handle that is kept beside the database it borrows from

use ecotone_engine::DATA_FAMILY;
use rust_rocksdb::{AsColumnFamilyRef, DB, ffi_raw};

/// The handle of [`DATA_FAMILY`].
///
/// Invariant: it is used only while the `DB` it came from lives; [`super::RocksdbTarget`] owns
/// both.
#[derive(Clone, Copy)]
pub(super) struct Family(*mut ffi_raw::rocksdb_column_family_handle_t);

// SAFETY: RocksDB allows a column family handle to be used from any thread at once;
// `rust_rocksdb::ColumnFamily`, to which it belongs, is `Send` and `Sync` for that reason.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

impl Family {
    /// The handle in `db`, or none where it has no such family.
    pub(super) fn of(db: &DB) -> Option<Self> {
        db.cf_handle(DATA_FAMILY).map(|family| Self(AsColumnFamilyRef::inner(&family)))
    }
}

impl AsColumnFamilyRef for Family {
    fn inner(&self) -> *mut ffi_raw::rocksdb_column_family_handle_t {
        self.0
    }
}
