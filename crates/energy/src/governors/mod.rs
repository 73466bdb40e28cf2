//! Governors: the highest frequency that cores may run at.
//!
//! A [`FrequencyGovernor`] caps **domains**, the groups of cores that share one frequency, and says
//! what was reached: a processor may follow another core's request, or round. Two kinds do
//! something, [`Cpufreq`] on hardware and [`QuotaGovernor`] on the lab's emulated cores;
//! [`NoGovernor`] stands for a machine without either. Which frequency is wanted is decided
//! elsewhere (`policy::power`).
//!
//! A cap never goes above what the operator had set before, and what was set before comes back: at
//! the end, and after SIGKILL by the next start or by [`cpufreq::restore`].

pub mod cpufreq;
mod disk;
mod frequencies;
mod quota;
mod record;

use std::path::Path;
use std::sync::Arc;

use ecotone_types::units::Hertz;

pub use cpufreq::Cpufreq;
pub use frequencies::Frequencies;
pub use quota::QuotaGovernor;

use crate::EnergyError;

/// Cores that share one frequency.
#[derive(Clone, Debug, PartialEq)]
pub struct FrequencyDomain {
    /// The cores, by the number that the kernel (or the lab) gives them.
    pub cores: Vec<u32>,
    /// The lowest cap.
    pub lowest: Hertz,
    /// The highest cap.
    pub highest: Hertz,
    /// The frequencies between, highest first; empty where any is possible.
    pub steps: Vec<Hertz>,
}

/// What became of a cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capped {
    /// It holds, at the frequency that was read back.
    At(Hertz),
    /// The cores are offline.
    Offline,
}

/// Caps the frequency of cores. May be shared between threads; calls wait for one another.
pub trait FrequencyGovernor: Send + Sync {
    /// `cpufreq`, `quota` or `none`.
    fn name(&self) -> &'static str;

    /// The domains; their positions are what the other calls take. None ever goes, and new ones come
    /// behind the others ([`FrequencyGovernor::find_more`]).
    fn domains(&self) -> Arc<[FrequencyDomain]>;

    /// Looks for domains that were not there before, as their cores were offline.
    ///
    /// # Errors
    /// [`EnergyError`] if what was found cannot be governed; the others are, as before.
    fn find_more(&self) -> Result<(), EnergyError> {
        Ok(())
    }

    /// The cores that are online; `None` where nobody says.
    fn online_cores(&self) -> Option<Vec<u32>> {
        None
    }

    /// Whether a domain has a core that is online, so that it can be capped.
    fn is_online(&self, domain: usize) -> bool;

    /// Caps a domain. A frequency outside its range means the nearest within; a domain that does not
    /// exist is [`Capped::Offline`].
    ///
    /// # Errors
    /// [`EnergyError`] if the cap cannot be set; it is then as before.
    fn cap(&self, domain: usize, highest: Hertz) -> Result<Capped, EnergyError>;

    /// The frequency that a domain runs at now; `None` if it is offline or cannot be read.
    fn reached(&self, domain: usize) -> Option<Hertz>;

    /// Sets everything as it was before the first cap.
    ///
    /// # Errors
    /// [`EnergyError`] of the first domain that refused; the others are restored.
    fn restore(&self) -> Result<(), EnergyError>;
}

/// The governor of a machine that has none: caps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGovernor;

impl FrequencyGovernor for NoGovernor {
    fn name(&self) -> &'static str {
        "none"
    }

    fn domains(&self) -> Arc<[FrequencyDomain]> {
        Arc::default()
    }

    fn is_online(&self, _domain: usize) -> bool {
        false
    }

    fn cap(&self, _domain: usize, _highest: Hertz) -> Result<Capped, EnergyError> {
        Ok(Capped::Offline)
    }

    fn reached(&self, _domain: usize) -> Option<Hertz> {
        None
    }

    fn restore(&self) -> Result<(), EnergyError> {
        Ok(())
    }
}

/// The governor of the machine whose file system begins at `root`: cpufreq where it is there and may
/// be written, else none. Why there is none is logged, once. `record` is where values from before
/// the first cap are kept.
pub fn choose(root: &Path, record: &Path) -> Box<dyn FrequencyGovernor> {
    match Cpufreq::open(root, record) {
        Ok(Some(governor)) => Box::new(governor),
        Ok(None) => {
            tracing::info!("this machine offers no control of its frequencies; they are left alone");
            Box::new(NoGovernor)
        }
        Err(error) => {
            tracing::warn!(%error, "the frequencies of this machine cannot be controlled; they are left alone");
            Box::new(NoGovernor)
        }
    }
}
