//! The C functions behind the compaction filters.

use std::ffi::c_void;
use std::sync::Arc;

use rust_rocksdb::AsRawPtr;

use super::{CompactionFilter, CompactionFilterFactory, FilterContext, Verdict};
use crate::callback::{self, release};
use crate::{buffer, ffi};

type Factory = Arc<dyn CompactionFilterFactory>;
type Filter = Box<dyn CompactionFilter>;

/// RocksDB takes a longer value for corruption and stops all writes.
const MAX_VALUE_BYTES: usize = u32::MAX as usize;

/// Puts the factory into the options; RocksDB drops it with the last options and store that use it.
pub fn set(options: &mut rust_rocksdb::Options, factory: Factory) {
    let calls = ffi::FilterFactory {
        state: Box::into_raw(Box::new(factory)).cast(),
        drop: release::<Factory>,
        filter,
        decide,
        filter_drop: release::<Filter>,
    };
    // SAFETY: the options are borrowed for the call and the shim takes the state, also when it
    // fails.
    let set = buffer::call("set a compaction filter", |out| unsafe {
        ffi::ecotone_set_compaction_filter(options.as_raw_ptr().cast(), &raw const calls, out)
    });
    if let Err(error) = set {
        // Only for want of memory, in which a process does not go on.
        panic!("{error}");
    }
}

unsafe extern "C" fn filter(
    state: *mut c_void,
    column_family_id: u32,
    input_level: i32,
    is_full: bool,
    is_manual: bool,
) -> *mut c_void {
    // SAFETY: C++ calls with the state of `set`, which is shared only.
    let factory = unsafe { &*state.cast::<Factory>() };
    let context = FilterContext { column_family_id, is_full, is_manual, input_level: u32::try_from(input_level).ok() };
    match callback::filter(|| factory.filter(context)) {
        Some(Some(filter)) => Box::into_raw(Box::<Filter>::new(filter)).cast(),
        Some(None) | None => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn decide(
    filter: *mut c_void,
    level: u32,
    key: ffi::Bytes,
    value: ffi::Bytes,
    reply: *mut ffi::Reply,
) -> i32 {
    // SAFETY: C++ calls with what `filter` gave it, from one thread at a time, and bytes that live
    // through the call.
    let (filter, key, value) = unsafe { (&mut *filter.cast::<Filter>(), key.as_slice(), value.as_slice()) };
    let decided = callback::filter(|| match filter.decide(level, key, value) {
        Verdict::Keep => ffi::FILTER_KEEP,
        Verdict::Remove => ffi::FILTER_REMOVE,
        Verdict::Change(changed) => {
            assert!(changed.len() <= MAX_VALUE_BYTES, "a changed value of {} bytes is too long", changed.len());
            // SAFETY: C++ calls with a live reply, which takes a copy; the filter lends the bytes
            // until then.
            let taken = unsafe { ffi::ecotone_reply_append(reply, changed.as_ptr(), changed.len()) };
            assert!(taken, "memory is short for a changed value");
            ffi::FILTER_CHANGE
        }
    });
    decided.unwrap_or(ffi::FILTER_FAILED)
}
