//! The allocator of the process, glibc's, told to hold on to less where memory is scarce.
//!
//! By default glibc makes up to eight arenas for each core, and each thread frees into the one that it took from. The blocks of
//! RocksDB's cache are taken by all threads that read, so every arena comes to hold holes that no other can use: on two
//! cores with 16 readers half as much again as is in use. Two arenas are enough for the few threads of a small device. Other allocators
//! were measured and held more (`docs/space.md`).

use ecotone_engine::Profile;

/// Arenas of a small device: two threads can allocate at a time.
const FEW_ARENAS: i32 = 2;

/// Makes the allocator suit `profile`. Before threads are started: those that are there keep their arenas. With another C library
/// than glibc it does nothing.
pub(crate) fn suit(profile: Profile) {
    if profile == Profile::SmallDevice {
        limit_arenas(FEW_ARENAS);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn limit_arenas(most: i32) {
    // SAFETY: it sets a number, under the allocator's own lock.
    let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, most) };
    if is_set == 0 {
        tracing::warn!("the allocator takes no limit of its arenas: the process may hold more memory than it should");
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn limit_arenas(_most: i32) {}
