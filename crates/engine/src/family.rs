//! The one column family that holds a store's data.

use rust_rocksdb::{AsColumnFamilyRef, DB, ffi_raw};

/// The name of the column family that holds all data.
pub const DATA_FAMILY: &str = "data";

/// The handle of [`DATA_FAMILY`], kept beside the database that owns it, so that no operation looks
/// it up by name.
///
/// Invariant: never outlives the `DB` it came from. [`crate::Store`] keeps both together and hands
/// out only borrows.
#[derive(Clone, Copy)]
pub(crate) struct DataFamily(*mut ffi_raw::rocksdb_column_family_handle_t);

// SAFETY: the pointee is a RocksDB handle whose functions may be called from any thread;
// `rust_rocksdb::ColumnFamily`, which owns it, is `Send` and `Sync` for the same reason.
unsafe impl Send for DataFamily {}
// SAFETY: as above.
unsafe impl Sync for DataFamily {}

impl DataFamily {
    /// The handle of the data family of `db`, or `None` where it has none.
    pub(crate) fn of(db: &DB) -> Option<Self> {
        db.cf_handle(DATA_FAMILY).map(|family| Self(AsColumnFamilyRef::inner(&family)))
    }
}

impl AsColumnFamilyRef for DataFamily {
    #[inline]
    fn inner(&self) -> *mut ffi_raw::rocksdb_column_family_handle_t {
        self.0
    }
}
