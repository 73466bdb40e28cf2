//! The way from C++ into Rust: no panic gets out, every failure is counted.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ffi;

static HOOK_PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK_ERRORS: AtomicU64 = AtomicU64::new(0);
static COLLECTOR_PANICS: AtomicU64 = AtomicU64::new(0);
static FILTER_PANICS: AtomicU64 = AtomicU64::new(0);

/// How often code that RocksDB called into failed, in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainedFailures {
    /// Panics of a tap, remap or remote file, each of which failed one operation.
    pub hook_panics: u64,
    /// Errors that these returned, other than `NotFound`, which is an answer.
    pub hook_errors: u64,
    /// Panics of a table collector, each of which cost one table its properties.
    pub collector_panics: u64,
    /// Panics of a compaction filter or its factory, each of which left the rest of one
    /// (sub)compaction unfiltered.
    pub filter_panics: u64,
}

/// Counts since the process began.
#[must_use]
pub fn contained_failures() -> ContainedFailures {
    ContainedFailures {
        hook_panics: HOOK_PANICS.load(Ordering::Relaxed),
        hook_errors: HOOK_ERRORS.load(Ordering::Relaxed),
        collector_panics: COLLECTOR_PANICS.load(Ordering::Relaxed),
        filter_panics: FILTER_PANICS.load(Ordering::Relaxed),
    }
}

/// Runs a hook. `Ok(None)` means that it does not answer for what it was asked; `Ok(Some(..))` goes
/// into the reply.
///
/// # Safety
///
/// `reply` must be a live reply of the shim.
pub unsafe fn answer(
    reply: *mut ffi::Reply,
    hook: &'static str,
    body: impl FnOnce() -> io::Result<Option<Vec<u8>>>,
) -> ffi::Code {
    let (code, bytes) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(Some(bytes))) => (ffi::OK, bytes),
        Ok(Ok(None)) => (ffi::NOT_MINE, Vec::new()),
        Ok(Err(error)) => {
            if error.kind() != io::ErrorKind::NotFound {
                HOOK_ERRORS.fetch_add(1, Ordering::Relaxed);
            }
            (code_of(error.kind()), error.to_string().into_bytes())
        }
        Err(panic) => {
            HOOK_PANICS.fetch_add(1, Ordering::Relaxed);
            let message = message_of(panic);
            tracing::error!(hook, message, "a file system hook panicked; the operation fails");
            (ffi::IO_ERROR, format!("the {hook} panicked: {message}").into_bytes())
        }
    };
    // SAFETY: the caller vouches for `reply`; the bytes live through the call.
    let given = bytes.is_empty() || unsafe { ffi::ecotone_reply_append(reply, bytes.as_ptr(), bytes.len()) };
    if given || code != ffi::OK { code } else { ffi::IO_ERROR }
}

/// Runs a hook that only hints; false when it panicked.
pub fn hint(body: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        HOOK_PANICS.fetch_add(1, Ordering::Relaxed);
        let message = message_of(panic);
        tracing::error!(message, "a hint to a remote file panicked; it is ignored");
        false
    })
}

/// Runs code of a collector; `None` when it panicked.
pub fn collect<T>(body: impl FnOnce() -> T) -> Option<T> {
    contain(&COLLECTOR_PANICS, "a table collector panicked; its table goes without these properties", body)
}

/// Runs code of a compaction filter; `None` when it panicked.
pub fn filter<T>(body: impl FnOnce() -> T) -> Option<T> {
    contain(&FILTER_PANICS, "a compaction filter panicked; what is left of its compaction is kept as it is", body)
}

fn contain<T>(panics: &AtomicU64, consequence: &'static str, body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(panic) => {
            panics.fetch_add(1, Ordering::Relaxed);
            let message = message_of(panic);
            tracing::error!(message, "{consequence}");
            None
        }
    }
}

/// Drops what C++ held for us; a destructor that panics is counted and goes no further.
///
/// # Safety
///
/// `state` must come from `Box::into_raw` of a `Box<T>` and not be used again.
pub unsafe extern "C" fn release<T>(state: *mut std::ffi::c_void) {
    // SAFETY: see above.
    let state = unsafe { Box::from_raw(state.cast::<T>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(state))) {
        HOOK_PANICS.fetch_add(1, Ordering::Relaxed);
        let message = message_of(panic);
        tracing::error!(message, "a hook panicked while it was dropped");
    }
}

fn code_of(kind: io::ErrorKind) -> ffi::Code {
    match kind {
        io::ErrorKind::NotFound => ffi::NOT_FOUND,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ffi::NO_SPACE,
        io::ErrorKind::Unsupported => ffi::NOT_SUPPORTED,
        io::ErrorKind::InvalidData => ffi::CORRUPTION,
        io::ErrorKind::InvalidInput => ffi::INVALID_ARGUMENT,
        io::ErrorKind::TimedOut => ffi::TIMED_OUT,
        _ => ffi::IO_ERROR,
    }
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(panic) => {
                // Its destructor might panic in turn.
                std::mem::forget(panic);
                "a value without a message".to_owned()
            }
        },
    }
}
