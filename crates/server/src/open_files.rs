//! How many file descriptors the process has open, and how many of those it may have are for
//! clients, and how many for the stores.
//!
//! Whatever grows has a share: a table or a segment for which there is no descriptor would end all
//! writing. All tables are held open while they are few beside what there is for them, as reads are
//! cheapest then; beyond that no more than fit.
//!
//! The kernel counts them since Linux 6.2. Before, all must be listed, hundreds of thousands where
//! there are as many clients, so it is done seldom and by nobody who owes an answer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ecotone_engine::{MAX_OPEN_SEGMENTS, MIN_OPEN_FILES, StoreSettings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Error;

const FOLDER: &str = "/proc/self/fd";

/// Between two lists: as often as most monitoring asks.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(15);

/// What is neither a client nor a table or segment that is held open: what a server without any of
/// these has (some 45, measured), connections for metrics (64) and for other servers' compactions
/// (64), and what compactions read and write beyond what is held open (some 40 in the worst that
/// was measured).
const OTHERS: u64 = 256;

/// Of the rest the store has half, but no more than makes this with the others, unless clients
/// leave it.
const MAX_KEPT: u64 = 8192;

/// So many clients may be allowed while the server runs, whatever was allowed at its start.
const USUAL_CLIENTS: usize = 10_000;

/// The engine takes no larger bound.
const MAX_TABLES: u64 = 1 << 24;

/// With a smaller share segments are held to as many as tables from the start.
const fn ample(stores: usize) -> u64 {
    OTHERS + 4 * MAX_OPEN_SEGMENTS as u64 * stores as u64
}

/// Lets the process have as many descriptors as the system allows it. Where that is refused it has
/// those that it had.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Clients for which descriptors are kept where `allowed` are at the start: no more of them may be
/// allowed later.
pub(crate) fn max_clients(allowed: usize) -> usize {
    let within = getrlimit(Resource::Nofile).current.map_or(usize::MAX, clients_within);
    within.min(allowed.max(USUAL_CLIENTS))
}

fn clients_within(descriptors: u64) -> usize {
    let kept = OTHERS + (descriptors.saturating_sub(OTHERS) / 2).min(MAX_KEPT - OTHERS);
    usize::try_from(descriptors.saturating_sub(kept)).unwrap_or(usize::MAX)
}

/// Sees to it that the stores in `directories` have no more files open together than the process
/// may have beside so many `clients`, unless `options` say how many. Gives the tables that they may
/// have where that need not be bounded yet: once there are [half as many](is_near), it is to be.
///
/// # Errors
///
/// The descriptors that the process may have are too few.
pub(crate) fn share_with_stores(
    options: &mut StoreSettings,
    directories: &[PathBuf],
    clients: usize,
) -> Result<Option<u32>, Error> {
    match getrlimit(Resource::Nofile).current {
        Some(descriptors) if options.max_open_files.is_none() => share_of(descriptors, options, directories, clients),
        _ => Ok(None),
    }
}

fn share_of(
    descriptors: u64,
    options: &mut StoreSettings,
    directories: &[PathBuf],
    clients: usize,
) -> Result<Option<u32>, Error> {
    let stores = directories.len().max(1);
    let share = descriptors.saturating_sub(clients as u64);
    let most = tables_within(share, stores).ok_or_else(|| {
        Error::Configuration(format!(
            "the process may have {descriptors} files open, which is too few for a server{}; raise its limit to {} or more (ulimit -n, LimitNOFILE)",
            if stores > 1 { format!(" with {stores} shards") } else { String::new() },
            1024 * stores
        ))
    })?;
    let tables = directories.iter().map(|directory| tables_in(directory)).sum();
    if share >= ample(stores) && !is_near(tables, most) {
        return Ok(Some(most));
    }
    options.max_open_files = Some(most);
    Ok(None)
}

/// What one of so many stores may have of what all of them may.
pub(crate) fn per_store(most: u32, stores: usize) -> u32 {
    let stores = u32::try_from(stores.max(1)).unwrap_or(u32::MAX);
    (most / stores).max(MIN_OPEN_FILES)
}

/// Tables that may be open within the share of so many stores; `None`: too few.
fn tables_within(share: u64, stores: usize) -> Option<u32> {
    let (left, stores) = (share.checked_sub(OTHERS)?, stores as u64);
    // The engine may have a sixteenth more of them than it is given.
    let tables = (left / 2).max(left.saturating_sub(MAX_OPEN_SEGMENTS as u64 * stores)) * 16 / 17;
    let least = u64::from(MIN_OPEN_FILES) * stores;
    u32::try_from(tables.min(MAX_TABLES)).ok().filter(|tables| u64::from(*tables) >= least)
}

/// Whether so many tables are to be held to `most` that are open. Those that are open by then stay
/// so.
pub(crate) fn is_near(tables: u64, most: u32) -> bool {
    tables > u64::from(most) / 2
}

/// Tables in a folder; 0 where it cannot be read, as where there is none yet.
fn tables_in(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst")).count() as u64
}

/// What the kernel says; `None` where it does not.
pub(crate) fn counted_by_kernel() -> Option<u64> {
    std::fs::metadata(FOLDER).ok().map(|folder| folder.len()).filter(|open| *open > 0)
}

fn listed() -> Option<u64> {
    // The folder that is read is one of them.
    std::fs::read_dir(FOLDER).ok().map(|files| (files.count() as u64).saturating_sub(1))
}

/// Lists them where the kernel does not count them.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    last: Option<(Instant, Option<u64>)>,
}

impl OpenFiles {
    /// The number at `now`, or not long before.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        counted_by_kernel().or_else(|| self.count_by(now, listed))
    }

    fn count_by(&mut self, now: Instant, list: impl FnOnce() -> Option<u64>) -> Option<u64> {
        match self.last {
            Some((at, open)) if now.saturating_duration_since(at) < LIST_AGAIN_AFTER => open,
            _ => self.last.insert((now, list())).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_and_what_is_listed_are_files_that_are_open() {
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(listed().unwrap() >= files.len() as u64);
        if let Some(open) = counted_by_kernel() {
            assert!(open >= files.len() as u64, "{open}");
        }
    }

    #[test]
    fn clients_leave_descriptors_to_the_store() {
        let within = [0, 256, 512, 1024, 16_384, 1 << 20].map(clients_within);
        assert_eq!(within, [0, 0, 128, 384, 8192, (1 << 20) - 8192]);
    }

    #[test]
    fn tables_segments_and_others_fit_in_the_share_of_the_store() {
        // The last two are the shares of a limit of 1024 with clients, and of the unit for systemd.
        let within = [0, OTHERS, 289, 290, 640, 252_144].map(|share| tables_within(share, 1));
        assert_eq!(within, [None, None, None, Some(16), Some(180), Some(236_830)]);
        for share in 290..5000 {
            for stores in [1, 4, 16] {
                // Each store has its own rounding, and its own segments.
                let Some(tables) = tables_within(share, stores) else { continue };
                let each = u64::from(per_store(tables, stores));
                let open = (each + each / 16 + each.min(MAX_OPEN_SEGMENTS as u64)) * stores as u64;
                assert!(open + OTHERS <= share, "{share} for {stores}: {tables}");
            }
            assert!(tables_within(share, 1).is_some());
        }
        assert_eq!((per_store(100, 3), per_store(20, 2), per_store(100, 0)), (33, MIN_OPEN_FILES, 100));
    }

    #[test]
    fn a_store_is_bounded_where_its_share_is_small_or_it_has_many_tables() {
        let folder = tempfile::tempdir().unwrap();
        let shared = |left: u64| {
            let mut options = StoreSettings::default();
            let later = share_of(100 + left, &mut options, &[folder.path().to_path_buf()], 100)
                .map_err(|error| error.to_string());
            later.map(|later| (options.max_open_files, later))
        };
        assert!(shared(289).is_err_and(|said| said.contains("LimitNOFILE")));
        assert_eq!(shared(320), Ok((Some(30), None)));
        assert_eq!(shared(ample(1)), Ok((None, Some(722))));
        for table in 0..385 {
            std::fs::write(folder.path().join(format!("{table:06}.sst")), "").unwrap();
        }
        assert_eq!(shared(ample(1)), Ok((Some(722), None)));
        let mut options = StoreSettings { max_open_files: Some(77), ..StoreSettings::default() };
        assert_eq!(share_with_stores(&mut options, &[folder.path().to_path_buf()], 100).unwrap(), None);
        assert_eq!(options.max_open_files, Some(77));
    }

    #[test]
    fn files_are_not_listed_again_soon() {
        let (mut files, begin) = (OpenFiles::default(), Instant::now());
        assert_eq!(files.count_by(begin, || Some(7)), Some(7));
        let soon = begin + LIST_AGAIN_AFTER - Duration::from_millis(1);
        assert_eq!(files.count_by(soon, || unreachable!("it was listed just now")), Some(7));
        assert_eq!(files.count_by(begin + LIST_AGAIN_AFTER, || Some(9)), Some(9));
    }
}
