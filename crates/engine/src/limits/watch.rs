//! The thread that looks how much room there is while nobody writes: so that writing resumes by itself, and what other
//! processes take is seen. Where space is tight it has garbage looked for, see [`super::reclaim`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_policy::dedup::forecast::SpaceGrowth;
use ecotone_policy::units::{Bytes, Time};
use parking_lot::{Condvar, Mutex};

use super::expired_tables::ExpiredTables;
use super::gate::Gate;
use super::reclaim::Reclaim;
use crate::data_layer::TableEvents;

/// Between two looks near the limit, or beyond it.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Between two looks far from it.
const FAR_INTERVAL: Duration = Duration::from_secs(1);

/// The value log is told when the share of free space has fallen by so much since it was told last.
const TOLD_STEP: f64 = 0.01;

/// Wakes the thread.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    look: bool,
    stop: bool,
}

impl Wake {
    /// Asks for a look at once.
    pub(crate) fn look_now(&self) {
        self.wanted.lock().look = true;
        self.changed.notify_one();
    }

    /// Waits for `time` or until a look is asked for. False when the thread is to end.
    fn wait(&self, time: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        self.changed.wait_while_for(&mut wanted, |wanted| !wanted.look && !wanted.stop, time);
        wanted.look = false;
        !wanted.stop
    }
}

/// The thread, while it lives.
pub(crate) struct Watch {
    gate: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `values` are told as space gets less, also where nobody writes; `expired` are rewritten while writes are refused.
    pub(crate) fn start(
        gate: Arc<Gate>,
        values: Option<TableEvents>,
        expired: Option<ExpiredTables>,
    ) -> std::io::Result<Self> {
        let of_thread = gate.clone();
        let thread = std::thread::Builder::new().name("ecotone-space".into()).spawn(move || {
            let (mut interval, mut reclaim) = (LOOK_INTERVAL, Reclaim::new(values.is_some(), expired));
            let mut told_share = 1.0;
            let (began, mut growth) = (Instant::now(), SpaceGrowth::new());
            while of_thread.wake.wait(interval) {
                interval = if of_thread.look_again() { LOOK_INTERVAL } else { FAR_INTERVAL };
                let room = of_thread.room();
                growth.observe(Time::from_seconds(began.elapsed().as_secs_f64()), Bytes(room.room_bytes()));
                of_thread.grows_by(growth.bytes_per_s());
                let free_share = room.free_share();
                if free_share <= told_share - TOLD_STEP {
                    values.iter().for_each(TableEvents::tables_changed);
                    told_share = free_share;
                }
                told_share = free_share.max(told_share);
                if of_thread.is_tight()
                    && let Some((db, family)) = of_thread.database()
                    && let Err(error) = reclaim.step(&db, family, &room)
                {
                    tracing::debug!(%error, "nothing could be done to find out what is garbage; trying again");
                }
            }
        })?;
        Ok(Self { gate, thread: Some(thread) })
    }
}

impl Watch {
    /// Tells the thread to end. A compaction that it waits for must be stopped by the caller.
    pub(crate) fn ask_to_stop(&self) {
        self.gate.wake.wanted.lock().stop = true;
        self.gate.wake.changed.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, its message is on standard error.
            let _ = thread.join();
        }
    }
}
