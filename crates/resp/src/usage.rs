//! What was asked of the server: for each command (`INFO commandstats`), and how fast (`INFO
//! stats`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::RuntimeMetrics;

use crate::histogram::Histogram;

/// Counts for each command and subcommand of the table.
#[derive(Debug, Default)]
pub struct Usage {
    /// By id, ascending.
    counts: Box<[CommandCounts]>,
    /// Those ids, which are looked through for each command.
    ids: Box<[usize]>,
}

/// What was asked of one command.
#[derive(Debug)]
pub struct CommandCounts {
    id: usize,
    /// The command's name, in lower case; a subcommand's as `container|name`.
    pub name: &'static str,
    /// Its family.
    pub group: &'static str,
    /// See [`flag`](crate::command::flag).
    pub flags: u32,
    /// How often it was carried out.
    pub calls: AtomicU64,
    /// How long that took in all.
    pub took_ns: AtomicU64,
    /// How long each took.
    pub times: Histogram,
    /// How often it was refused before: by the number of its arguments, for want of a password.
    pub refused: AtomicU64,
    /// How often it replied an error.
    pub failed: AtomicU64,
}

impl Usage {
    /// For commands by id, name, family and flags.
    pub(crate) fn of(commands: impl Iterator<Item = (usize, &'static str, &'static str, u32)>) -> Self {
        let counts = |(id, name, group, flags)| CommandCounts {
            id,
            name,
            group,
            flags,
            calls: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            times: Histogram::default(),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        let mut counts: Box<[CommandCounts]> = commands.map(counts).collect();
        counts.sort_unstable_by_key(|counts| counts.id);
        let ids = counts.iter().map(|counts| counts.id).collect();
        Self { counts, ids }
    }

    /// A command was carried out.
    #[inline]
    pub fn carried_out(&self, id: usize, took: Duration, has_failed: bool) {
        let Some(counts) = self.counts_of(id) else { return };
        counts.calls.fetch_add(1, Ordering::Relaxed);
        counts.took_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        counts.times.record(took);
        if has_failed {
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A command was refused before it was carried out.
    pub fn refused(&self, id: usize) {
        if let Some(counts) = self.counts_of(id) {
            counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All commands that something was asked of.
    pub fn used(&self) -> impl Iterator<Item = &CommandCounts> {
        self.counts
            .iter()
            .filter(|counts| counts.calls.load(Ordering::Relaxed) > 0 || counts.refused.load(Ordering::Relaxed) > 0)
    }

    /// All commands.
    pub fn all(&self) -> &[CommandCounts] {
        &self.counts
    }

    /// All from 0 again.
    pub fn reset(&self) {
        for counts in &self.counts {
            counts.times.reset();
            for count in [&counts.calls, &counts.took_ns, &counts.refused, &counts.failed] {
                count.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Microseconds in all commands. What a transaction's commands took counts with those, and not
    /// with its end.
    pub fn took_us(&self) -> u64 {
        let counts = self.counts.iter().filter(|counts| counts.name != "exec");
        counts.map(|counts| counts.took_ns.load(Ordering::Relaxed)).sum::<u64>() / 1000
    }

    fn counts_of(&self, id: usize) -> Option<&CommandCounts> {
        let index = self.ids.binary_search(&id).ok()?;
        Some(&self.counts[index])
    }
}

/// What the event loops' threads do: each turn begins with what the sockets have brought, and ends
/// with a wait for more.
#[derive(Debug, Default)]
pub struct Loops(Mutex<LoopTotals>);

#[derive(Debug, Default)]
struct LoopTotals {
    runtimes: Vec<RuntimeMetrics>,
    /// When they were last set back.
    before: (u64, Duration),
}

impl LoopTotals {
    fn all(&self) -> (u64, Duration) {
        let each = self
            .runtimes
            .iter()
            .map(|event_loop| (event_loop.worker_park_count(0), event_loop.worker_total_busy_duration(0)));
        each.fold((0, Duration::ZERO), |(turns, busy), (more, longer)| (turns + more, busy + longer))
    }
}

impl Loops {
    /// From now on these are the event loops; none once they have ended.
    pub(crate) fn watch(&self, runtimes: Vec<RuntimeMetrics>) {
        *self.0.lock() = LoopTotals { runtimes, ..LoopTotals::default() };
    }

    /// How many turns there were, and the microseconds that they took.
    pub fn totals(&self) -> (u64, u64) {
        let turns = self.0.lock();
        let ((now, busy), (then, before)) = (turns.all(), turns.before);
        (now.saturating_sub(then), busy.saturating_sub(before).as_micros() as u64)
    }

    /// All from 0 again.
    pub(crate) fn reset(&self) {
        let mut turns = self.0.lock();
        turns.before = turns.all();
    }
}

/// Counts whose growth is measured.
const RATES: usize = 5;

/// Nothing is measured over less time.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// How fast counts grow: between the last two looks that were a second apart. Nobody wakes up to
/// measure.
#[derive(Debug)]
pub struct Rates(Mutex<RateWindow>);

#[derive(Debug)]
struct RateWindow {
    since: Instant,
    totals: [u64; RATES],
    per_second: [f64; RATES],
}

impl Default for Rates {
    fn default() -> Self {
        Self(Mutex::new(RateWindow { since: Instant::now(), totals: [0; RATES], per_second: [0.0; RATES] }))
    }
}

impl Rates {
    /// How much each of `totals` grows in a second.
    pub fn of(&self, totals: [u64; RATES]) -> [f64; RATES] {
        let mut window = self.0.lock();
        let elapsed = window.since.elapsed();
        if elapsed >= MIN_WINDOW {
            let before = window.totals;
            // Less than before: they began again from 0.
            window.per_second =
                std::array::from_fn(|of| totals[of].saturating_sub(before[of]) as f64 / elapsed.as_secs_f64());
            window.totals = totals;
            window.since = Instant::now();
        }
        window.per_second
    }
}
