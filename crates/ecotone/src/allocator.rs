//! The allocator of the whole process, RocksDB included: jemalloc, set to keep little.
//!
//! By itself it makes four arenas for each core, each with holes that no other can fill, and keeps
//! pages that nobody uses for ten seconds. Blocks of RocksDB's cache are freed by other threads
//! than took them, and clients' values come and go, so that holes are many. Two arenas, and a
//! second, are enough for the few threads of a small server, and most of what they ask for comes
//! from what each thread keeps for itself. (Pieces of 8 MiB and more have an arena of their own,
//! which gives back at once.) Pages go as threads allocate: no thread wakes for that.
//! `docs/space.md` has what other ways keep and cost.
//!
//! What `MALLOC_CONF` in the environment or `/etc/malloc.conf` say wins; the rest stays
//! (`docs/operations.md`).

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use ecotone_server::{Allocator, AllocatorCounts};
use tikv_jemalloc_ctl::{epoch, stats, stats_print, version};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Where jemalloc looks for its settings, before anything else of the program runs.
// SAFETY: jemalloc declares the symbol so that a program may define it, as a pointer to a string
// that ends with a zero and stays.
#[unsafe(export_name = "malloc_conf")]
#[used]
static SETTINGS: Settings = Settings(c"narenas:2,dirty_decay_ms:1000".as_ptr());

#[repr(transparent)]
struct Settings(*const c_char);

// SAFETY: nobody writes to what it points to.
unsafe impl Sync for Settings {}

/// Held while figures are brought up to date and read: they are of one moment then.
static READING: Mutex<()> = Mutex::new(());

/// Gives back what no arena uses: all of them, by jemalloc's number for that
/// (`MALLCTL_ARENAS_ALL`).
const PURGE_ALL: &CStr = c"arena.4096.purge";

/// The allocator of this process.
pub(crate) struct OfProcess;

impl Allocator for OfProcess {
    fn name(&self) -> String {
        // 5.3.1-0-g81034ce...
        let all = version::read().unwrap_or_default();
        format!("jemalloc-{}", all.split('-').next().unwrap_or_default())
    }

    fn counts(&self) -> Option<AllocatorCounts> {
        let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        epoch::advance().ok()?;
        let resident = stats::resident::read().ok()? as u64;
        // Arenas are counted one after the other, while others allocate.
        let active = (stats::active::read().ok()? as u64).min(resident);
        let allocated = (stats::allocated::read().ok()? as u64).min(active);
        Some(AllocatorCounts { allocated, active, resident })
    }

    fn report(&self) -> String {
        let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = Vec::new();
        match stats_print::stats_print(&mut report, stats_print::Options::default()) {
            Ok(()) => String::from_utf8_lossy(&report).into_owned(),
            Err(error) => format!("jemalloc has no statistics: {error}"),
        }
    }

    fn purge(&self) -> bool {
        // SAFETY: the name is one that takes and gives nothing.
        unsafe { tikv_jemalloc_sys::mallctl(PURGE_ALL.as_ptr(), null_mut(), null_mut(), null_mut(), 0) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_the_allocator_with_these_settings() {
        assert!(OfProcess.name().starts_with("jemalloc-5."), "{}", OfProcess.name());
        if std::env::var_os("MALLOC_CONF").is_some() || std::path::Path::new("/etc/malloc.conf").exists() {
            return;
        }
        let report = OfProcess.report();
        for setting in ["opt.narenas: 2", "opt.dirty_decay_ms: 1000"] {
            assert!(report.contains(setting), "{setting}: {report}");
        }
    }

    // Of a program that is linked statically nothing is found so.
    #[cfg(target_env = "gnu")]
    #[test]
    fn shared_libraries_have_it_as_well() {
        // The C++ library's, by which RocksDB takes all its memory.
        // SAFETY: names of functions, which nothing unloads.
        let of = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert_eq!(of(c"malloc"), tikv_jemalloc_sys::malloc as *mut _);
        assert_eq!(of(c"calloc"), tikv_jemalloc_sys::calloc as *mut _);
        assert_eq!(of(c"aligned_alloc"), tikv_jemalloc_sys::aligned_alloc as *mut _);
        assert_eq!(of(c"posix_memalign"), tikv_jemalloc_sys::posix_memalign as *mut _);
        assert_eq!(of(c"malloc_usable_size"), tikv_jemalloc_sys::malloc_usable_size as *mut _);
        assert_eq!(of(c"realloc"), tikv_jemalloc_sys::realloc as *mut _);
        assert_eq!(of(c"free"), tikv_jemalloc_sys::free as *mut _);
    }

    #[test]
    fn what_is_taken_counts() {
        const BYTES: u64 = 64 << 20;
        let before = OfProcess.counts().unwrap();
        let taken = vec![1_u8; BYTES as usize];
        let with = OfProcess.counts().unwrap();
        // Other tests of the process take and give back little.
        assert!(with.allocated >= before.allocated + BYTES / 2, "{before:?} {with:?}");
        assert!(with.active >= with.allocated && with.resident >= with.active, "{with:?}");
        drop(taken);
        assert!(OfProcess.purge());
    }
}
