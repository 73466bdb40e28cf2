//! Waiting until a store has nothing left to do.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How often a store is asked.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `is_busy` says no twice in a row: between the end of one compaction and the begin of
/// the next there is a moment in which neither shows. All answers for as long as `quiet` must be
/// no. Returns whether that came within `limit`, and before `stop`.
pub(super) fn until_idle(
    limit: Duration,
    stop: &AtomicBool,
    quiet: Duration,
    mut is_busy: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let begin = Instant::now();
    let mut idle = 0;
    let mut idle_since = begin;
    loop {
        idle = if is_busy()? { 0 } else { idle + 1 };
        if idle <= 1 {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= quiet {
            return Ok(true);
        }
        if begin.elapsed() >= limit || stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        std::thread::sleep(ASK_INTERVAL);
    }
}

/// Refuses a directory that holds something, so that no run measures, or destroys, what it does not
/// know.
pub(super) fn check_empty(directory: &Path) -> Result<()> {
    let mut entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", directory, error)),
    };
    if entries.next().is_none() {
        return Ok(());
    }
    Err(Error::options(format!(
        "{} is not empty; name an empty directory, or say that the store in it is to be used",
        directory.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_single_quiet_moment_is_not_taken_for_the_end() {
        let mut answers = [true, false, true, false, false].into_iter();
        assert!(until_idle(Duration::from_secs(60), &GOES_ON, Duration::ZERO, || Ok(answers.next().unwrap())).unwrap());
        assert_eq!(answers.next(), None);
    }

    #[test]
    fn quiet_has_to_last_as_long_as_asked() {
        let begin = Instant::now();
        let mut answers = [false, false, true].into_iter();
        let quiet = Duration::from_millis(100);
        assert!(until_idle(Duration::from_secs(60), &GOES_ON, quiet, || Ok(answers.next().unwrap_or(false))).unwrap());
        assert!(answers.next().is_none() && begin.elapsed() >= quiet);
    }

    #[test]
    fn a_store_that_never_rests_is_given_up() {
        assert!(!until_idle(Duration::ZERO, &GOES_ON, Duration::ZERO, || Ok(true)).unwrap());
    }

    #[test]
    fn who_is_told_to_stop_does_not_wait() {
        let (stop, mut asked) = (AtomicBool::new(false), 0);
        let busy = || {
            asked += 1;
            stop.store(asked == 2, Ordering::Relaxed);
            Ok(true)
        };
        assert!(!until_idle(Duration::MAX, &stop, Duration::ZERO, busy).unwrap());
        assert_eq!(asked, 2);
    }
}
