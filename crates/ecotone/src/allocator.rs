//! The allocator of the process, glibc's, told to hold on to less where memory is scarce.
//!
//! By default glibc makes up to eight arenas for each core, and each thread frees into the one that it took from. The blocks of
//! RocksDB's cache are taken by all threads that read, so every arena comes to hold holes that no other can use: on two
//! cores with 16 readers half as much again as is in use, and with clients of all kinds so much that the kernel ended a server whose control
//! group had twice what it accounted for. Two arenas are enough for the few threads of a small device, and one for each core for a server whose memory
//! is its own. Other allocators were measured and held more (`docs/space.md`).

use std::num::NonZeroUsize;

use ecotone_engine::Profile;

/// Arenas of a small device: two threads can allocate at a time.
const FEW_ARENAS: i32 = 2;

/// Makes the allocator suit `profile`, and a process that `has_own_memory`, unless its user has said how many arenas it makes. Before threads
/// are started: those that are there keep their arenas. With another C library than glibc it does nothing.
pub(crate) fn suit(profile: Profile, has_own_memory: bool) {
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let is_told = std::env::var_os("MALLOC_ARENA_MAX").is_some() || tunables.contains("glibc.malloc.arena_max");
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if let Some(most) = arenas(profile, has_own_memory, cores).filter(|_| !is_told) {
        limit_arenas(most);
    }
}

/// `None`: as many as glibc likes.
fn arenas(profile: Profile, has_own_memory: bool, cores: usize) -> Option<i32> {
    match profile {
        Profile::SmallDevice => Some(FEW_ARENAS),
        _ if has_own_memory => Some(i32::try_from(cores).unwrap_or(i32::MAX).max(FEW_ARENAS)),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_few_where_memory_is_scarce_or_its_own() {
        assert_eq!(arenas(Profile::SmallDevice, false, 16), Some(2));
        assert_eq!(arenas(Profile::SmallDevice, true, 16), Some(2));
        assert_eq!([1, 2, 16].map(|cores| arenas(Profile::Default, true, cores)), [Some(2), Some(2), Some(16)]);
        assert_eq!(arenas(Profile::Default, false, 16), None);
    }
}
