//! How many file descriptors the process has open.
//!
//! The kernel tells it at once since Linux 6.2. Before, all must be listed, hundreds of thousands where there are as many clients, so it
//! is done seldom and by nobody who owes an answer.

use std::time::{Duration, Instant};

const FOLDER: &str = "/proc/self/fd";

/// Between two lists: as often as most look.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(15);

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
    fn files_are_not_listed_again_soon() {
        let (mut files, begin) = (OpenFiles::default(), Instant::now());
        assert_eq!(files.count_by(begin, || Some(7)), Some(7));
        let soon = begin + LIST_AGAIN_AFTER - Duration::from_millis(1);
        assert_eq!(files.count_by(soon, || unreachable!("it was listed just now")), Some(7));
        assert_eq!(files.count_by(begin + LIST_AGAIN_AFTER, || Some(9)), Some(9));
    }
}
