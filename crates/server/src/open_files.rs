//! How many file descriptors the process has open, and how many of those it may have are for clients.
//!
//! The kernel tells it at once since Linux 6.2. Before, all must be listed, hundreds of thousands where there are as many clients, so it
//! is done seldom and by nobody who owes an answer.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const FOLDER: &str = "/proc/self/fd";

/// Between two lists: as often as most look.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Half of the descriptors that the process may have is kept for tables, segments, logs and other servers, but at most this: a log that cannot
/// be made would end all writing.
const MOST_KEPT: u64 = 8192;

/// Lets the process have as many descriptors as the system allows it. Where that is refused it has those that it had.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Clients for which there are descriptors beside those that are kept.
pub(crate) fn most_clients() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, clients_within)
}

fn clients_within(descriptors: u64) -> usize {
    usize::try_from(descriptors - (descriptors / 2).min(MOST_KEPT)).unwrap_or(usize::MAX)
}

/// What the kernel says; `None` where it does not.
pub(crate) fn told() -> Option<u64> {
    std::fs::metadata(FOLDER).ok().map(|folder| folder.len()).filter(|open| *open > 0)
}

fn listed() -> Option<u64> {
    // The folder that is read is one of them.
    std::fs::read_dir(FOLDER).ok().map(|files| (files.count() as u64).saturating_sub(1))
}

/// Lists them where the kernel does not tell how many there are.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    last: Option<(Instant, Option<u64>)>,
}

impl OpenFiles {
    /// The number at `now`, or not long before.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        told().or_else(|| self.count_by(now, listed))
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
        if let Some(open) = told() {
            assert!(open >= files.len() as u64, "{open}");
        }
    }

    #[test]
    fn clients_leave_descriptors_to_the_store() {
        assert_eq!([0, 1, 200, 1024, 16_384, 1 << 20].map(clients_within), [0, 1, 100, 512, 8192, (1 << 20) - 8192]);
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
