//! A check of a store by the process that has it open for writing.
//!
//! What is checked is a checkpoint: the store as it was at one moment, whose files are those of the
//! store by a second name. So it is checked as a closed store is, and nothing that is written or
//! removed meanwhile can be taken for damage. It lies in the store's folder until the check ends,
//! or until the store is opened again after a kill; as long it keeps tables and segments from being
//! freed.
//!
//! Invariants: one check at a time. Failure: a check that cannot have a checkpoint, as on a full
//! disk, finds nothing and says why.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::findings::{Checking, Finding, VerifyReport};
use super::verify::verify_until;
use crate::layout::{CHECKED_DIRECTORY, remove_checked_copy};
use crate::{Error, Result, Store};

impl Store {
    /// Checks the store as it is now, while it is read and written. `progress` is called now and
    /// then, and ends the check where it breaks: `None` then. Flushes, and begins another segment.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while another check runs; [`Error::DiskFull`] where there is no room for a
    /// flush; what keeps the checkpoint from being made, or read.
    pub fn verify_now(&self, progress: impl FnMut(Checking) -> ControlFlow<()>) -> Result<Option<VerifyReport>> {
        let Some(_one) = self.checks.try_lock() else {
            return Err(Error::Busy { detail: "the store is being checked already".into() });
        };
        // A flush that met the end of the disk would stop all writes.
        if self.free_space().is_some_and(|free_space| free_space.spare_bytes() < 0) {
            let detail = "a check begins with a flush, for which there is no room".into();
            return Err(Error::DiskFull { detail });
        }
        let checked = Checked(self.directory().join(CHECKED_DIRECTORY));
        self.checkpoint(&checked.0)?;
        let report = verify_until(&checked.0, progress)?;
        let names = (checked.0.display().to_string(), self.directory().display().to_string());
        Ok(report.map(|mut report| {
            let VerifyReport { damaged, overstated, torn_ends, .. } = &mut report;
            for Finding { place, detail, .. } in damaged.iter_mut().chain(overstated).chain(torn_ends) {
                *place = place.replace(&names.0, &names.1);
                *detail = detail.replace(&names.0, &names.1);
            }
            report
        }))
    }
}

/// The checkpoint, removed with this.
struct Checked(PathBuf);

impl Drop for Checked {
    fn drop(&mut self) {
        remove_checked_copy(&self.0);
    }
}
