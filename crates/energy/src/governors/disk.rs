//! Where all that a governor changes on a machine passes through.

use std::path::Path;

use crate::{EnergyError, sysfs};

/// Where everything that changes the machine passes through, so that a test can stop it at any step.
#[derive(Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub(super) steps_left: Option<std::sync::atomic::AtomicU64>,
}

impl Disk {
    /// Called before each change.
    pub(super) fn step(&self, path: &Path) -> Result<(), EnergyError> {
        #[cfg(test)]
        if let Some(left) = &self.steps_left {
            use std::sync::atomic::Ordering::Relaxed;
            if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
                return Err(EnergyError::system("write", path, std::io::ErrorKind::Interrupted.into()));
            }
        }
        let _ = path;
        Ok(())
    }

    pub(super) fn write(&self, path: &Path, text: &str) -> Result<(), EnergyError> {
        self.step(path)?;
        sysfs::write(path, text)
    }
}
