//! Load that shares a server's cores with its store: what an application next to it would do
//! (EdgePilot, section V-C).
//!
//! Each thread computes square roots, as the papers' `stress` does, and takes an emulated core like
//! any other busy thread. Its energy is the application's: the meter shows it as unattributed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ecotone_energy::cores::CoreBinder;
use ecotone_types::Duty;

use crate::error::{Error, Result};

/// Square roots between two checks of the stop flag: some tens of microseconds.
const ROOTS_PER_ROUND: u32 = 10_000;

/// The running threads. Stopped when dropped.
pub(crate) struct Colocated {
    binder: Arc<dyn CoreBinder>,
    threads: Vec<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Colocated {
    pub(crate) fn new(binder: Arc<dyn CoreBinder>) -> Colocated {
        Colocated { binder, threads: Vec::new() }
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Makes it `count` threads.
    pub(crate) fn set(&mut self, count: usize) -> Result<()> {
        for (stop, thread) in self.threads.drain(count.min(self.threads.len())..) {
            stop.store(true, Ordering::Relaxed);
            // It computes and cannot panic.
            let _ = thread.join();
        }
        while self.threads.len() < count {
            let stop = Arc::new(AtomicBool::new(false));
            let (binder, stopped) = (self.binder.clone(), stop.clone());
            let thread = std::thread::Builder::new()
                .name("colocated".into())
                .spawn(move || compute(&*binder, &stopped))
                .map_err(|source| Error::Thread { what: "co-located load", source })?;
            self.threads.push((stop, thread));
        }
        Ok(())
    }
}

impl Drop for Colocated {
    fn drop(&mut self) {
        // Stopping cannot fail, only starting can.
        let _ = self.set(0);
    }
}

fn compute(binder: &dyn CoreBinder, stop: &AtomicBool) {
    let thread = ecotone_energy::this_thread_id();
    binder.enter(thread, Duty::Foreground.into());
    let mut value = 2.0_f64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..ROOTS_PER_ROUND {
            value = std::hint::black_box(value).sqrt() + 1.0;
        }
    }
    binder.leave(thread);
}
