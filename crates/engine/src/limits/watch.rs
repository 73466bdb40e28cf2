//! The thread that looks how much room there is while nobody writes: so that writing resumes by itself, and what other
//! processes take is seen. Where space is tight it has garbage looked for, see [`super::reclaim`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_policy::dedup::forecast::SpaceGrowth;
use ecotone_policy::units::{Bytes, Time};
use parking_lot::{Condvar, Mutex};

use super::ballast::Ballast;
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
    /// `values` are told as space gets less, also where nobody writes; `expired` are rewritten while writes are refused. Memtables that were made larger
    /// for replay are to be of `memtable_bytes` once there is room again.
    pub(crate) fn start(
        gate: Arc<Gate>,
        values: Option<TableEvents>,
        expired: Option<ExpiredTables>,
        mut memtable_bytes: Option<u64>,
    ) -> std::io::Result<Self> {
        let of_thread = gate.clone();
        let thread = std::thread::Builder::new().name("ecotone-space".into()).spawn(move || {
            let (mut interval, mut reclaim) = (LOOK_INTERVAL, Reclaim::new(values.is_some(), expired));
            let (mut told_share, mut ballast) = (1.0, Ballast::of(of_thread.directory()));
            ballast.keep(of_thread.room().room_bytes(), of_thread.space_bytes());
            let (began, mut growth) = (Instant::now(), SpaceGrowth::new());
            while of_thread.wake.wait(interval) {
                interval = if of_thread.look_again() { LOOK_INTERVAL } else { FAR_INTERVAL };
                let room = of_thread.room();
                ballast.keep(room.room_bytes(), of_thread.space_bytes());
                growth.observe(Time::from_seconds(began.elapsed().as_secs_f64()), Bytes(room.room_bytes()));
                of_thread.grows_by(growth.bytes_per_s());
                let free_share = room.free_share();
                if free_share <= told_share - TOLD_STEP {
                    values.iter().for_each(TableEvents::tables_changed);
                    told_share = free_share;
                }
                told_share = free_share.max(told_share);
                if !room.writes_refused
                    && let Some(bytes) = memtable_bytes
                    && let Some((db, family)) = of_thread.database()
                {
                    match db.set_options_cf(&family, &[("write_buffer_size", &bytes.to_string())]) {
                        Ok(()) => memtable_bytes = None,
                        Err(error) => tracing::debug!(%error, "memtables cannot be made smaller; trying again"),
                    }
                }
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
