//! The C functions behind the table collectors.

use std::ffi::c_void;
use std::sync::Arc;

use rust_rocksdb::AsRawPtr;

use super::{ENTRIES_AT_A_TIME, EntryKind, TableCollector, TableCollectorFactory, TableContext};
use crate::callback::{collect, release};
use crate::{buffer, ffi};

type Factory = Arc<dyn TableCollectorFactory>;
/// What a collector is to C++: a pointer to one of these.
pub type Collector = Box<dyn TableCollector>;

/// Puts the factory into the options; RocksDB drops it with the last options and store that use it.
pub fn add(options: &mut rust_rocksdb::Options, factory: Factory) {
    let calls = ffi::CollectorFactory {
        state: Box::into_raw(Box::new(factory)).cast(),
        entries_at_a_time: ENTRIES_AT_A_TIME,
        drop: release::<Factory>,
        collector,
        begin,
        add: entry,
        finish,
        collector_drop: release::<Collector>,
    };
    // SAFETY: the options are borrowed for the call and the shim takes the state, also when it
    // fails.
    let added = buffer::call("add a table collector", |out| unsafe {
        ffi::ecotone_add_table_collector(options.as_raw_ptr().cast(), &raw const calls, out)
    });
    if let Err(error) = added {
        // Only for want of memory, in which a process does not go on.
        panic!("{error}");
    }
}

unsafe extern "C" fn collector(state: *mut c_void, column_family_id: u32, level: i32) -> *mut c_void {
    // SAFETY: C++ calls with the state of `add`, which is shared only.
    let factory = unsafe { &*state.cast::<Factory>() };
    // RocksDB's words for "unknown".
    let column_family_id = (column_family_id != i32::MAX as u32).then_some(column_family_id);
    let context = TableContext { column_family_id, level: u32::try_from(level).ok() };
    match collect(|| factory.collector(context)) {
        Some(Some(collector)) => Box::into_raw(Box::<Collector>::new(collector)).cast(),
        Some(None) | None => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn begin(collector: *mut c_void, passes_over: *mut u64) -> bool {
    // SAFETY: C++ calls with what `collector` gave it, from one thread at a time, and a number of
    // its own.
    let (collector, passes_over) = unsafe { (&mut *collector.cast::<Collector>(), &mut *passes_over) };
    collect(|| *passes_over = collector.begin()).is_some()
}

/// # Safety
///
/// `collector` must be a [`Collector`] that nobody else uses meanwhile, and the bytes must live
/// through the call.
pub unsafe extern "C" fn entry(
    collector: *mut c_void,
    key: ffi::Bytes,
    value: ffi::Bytes,
    kind: i32,
    sequence: u64,
    file_bytes: u64,
) -> bool {
    // SAFETY: C++ calls with what `collector` gave it, from one thread at a time, and bytes that
    // live through the call.
    let (collector, key, value) = unsafe { (&mut *collector.cast::<Collector>(), key.as_slice(), value.as_slice()) };
    collect(|| collector.add(key, value, kind_of(kind), sequence, file_bytes)).is_some()
}

unsafe extern "C" fn finish(collector: *mut c_void, reply: *mut ffi::Reply) -> bool {
    // SAFETY: C++ calls with what `collector` gave it, from one thread at a time.
    let collector = unsafe { &mut *collector.cast::<Collector>() };
    let Some(properties) = collect(|| collector.finish()) else { return false };
    let mut pairs = Vec::new();
    for (name, value) in &properties {
        for bytes in [name.as_bytes(), value] {
            pairs.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            pairs.extend_from_slice(bytes);
        }
    }
    // SAFETY: C++ calls with a live reply; the bytes live through the call.
    unsafe { ffi::ecotone_reply_append(reply, pairs.as_ptr(), pairs.len()) }
}

/// `EntryType` of RocksDB's `types.h`.
fn kind_of(kind: i32) -> EntryKind {
    match kind {
        0 => EntryKind::Put,
        1 => EntryKind::Delete,
        2 => EntryKind::SingleDelete,
        3 => EntryKind::Merge,
        4 => EntryKind::RangeDelete,
        7 => EntryKind::WideColumns,
        _ => EntryKind::Other,
    }
}
