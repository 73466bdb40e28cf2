//! When a merge may run: never into a write stall.
//!
//! While a merge of ours runs, RocksDB begins no compaction of its own unless it is pressed: L0
//! fills up meanwhile. So a merge is forbidden where writers would be slowed before it ends, by the
//! forecast of ECO-KVS ([`StallForecast`]), and whenever RocksDB is pressed already.

use crate::dedup::DedupParameters;
use crate::machine::ModelParameters;
use crate::regression::{Line, Regression, Weights};
use crate::stall::StallForecast;
use ecotone_types::units::{Bytes, BytesPerSecond, Seconds, Tables, TablesPerSecond, Time};

/// So many tables before writers are slowed a merge must have ended: one is being flushed, and one
/// more comes while L0 is compacted.
const SPARE_TABLES: f64 = 2.0;

/// How fast an average follows: half of what is new in a second, as the window of three samples of
/// ECO-KVS section VII-D.
const KEPT_EACH_SECOND: f64 = 0.5;

/// A sample of less time says little.
const MIN_SAMPLE: Seconds = Seconds(1.0);

/// One of more time is an average over what may have changed since: the next one counts alone.
const LONGEST_SAMPLE: Seconds = Seconds(3.0);

/// Before any merge has run: bytes of tables that one reads and writes in a second.
const PRIOR_BYTES_PER_S: f64 = 50e6;

/// The fixed time of a merge, before any has run.
const PRIOR_MERGE_SECONDS: f64 = 0.01;

/// What merges take, before any has run.
const PRIOR: Line = Line { a: 1.0 / PRIOR_BYTES_PER_S, b: PRIOR_MERGE_SECONDS };

/// While what was learned of the time of merges forbids them, half of it is forgotten in such a
/// time. Nothing else would ever correct it: one merge that was slow for once would be the last
/// one. After one such merge the next is tried some seven half-lives later, and after any number of
/// them in 26, when all is forgotten ([`Regression::fade`]); where merges are slow for good, a
/// stall of one follows at such intervals and no more often.
const FADE_HALF_LIFE: Seconds = Seconds(60.0);

/// How slowly the average of the growth of space follows: after so long half of it is new. Most
/// compactions have freed by then what they took.
const GROWTH_HALF_LIFE: Seconds = Seconds(60.0);

/// Space that lasts longer is no deadline.
const LONGEST_DEADLINE: Seconds = Seconds(3600.0);

/// Tables that flushes add to L0 in a second: an exponential average over samples of a second or
/// more.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushRate {
    last: Option<(Time, u64)>,
    average: Option<f64>,
}

impl FlushRate {
    /// No samples yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many tables have been flushed since the store was opened. May be called at any time.
    pub fn observe(&mut self, now: Time, flushed_tables_total: u64) {
        let Some((then, before)) = self.last else {
            self.last = Some((now, flushed_tables_total));
            return;
        };
        let time = now.since(then);
        if time < MIN_SAMPLE {
            return;
        }
        self.last = Some((now, flushed_tables_total));
        if time > LONGEST_SAMPLE {
            self.average = None;
            return;
        }
        let rate = flushed_tables_total.saturating_sub(before) as f64 / time.0;
        let kept = KEPT_EACH_SECOND.powf(time.0);
        self.average = Some(self.average.map_or(rate, |average| average * kept + rate * (1.0 - kept)));
    }

    /// `None` before the second sample, and after a while without any.
    pub fn tables_per_s(&self) -> Option<TablesPerSecond> {
        self.average.map(TablesPerSecond)
    }
}

/// How pressed a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Tables in L0.
    pub l0_tables: u64,
    /// At so many L0 is compacted.
    pub l0_compaction_trigger: u64,
    /// At so many writers are slowed.
    pub l0_slowdown_trigger: u64,
    /// Whether writers are slowed or stopped.
    pub is_slowed: bool,
    /// What compactions have before them, by RocksDB.
    pub pending_compaction_bytes: Bytes,
    /// At so much of it writers are slowed; 0: never.
    pub pending_slowdown_bytes: Bytes,
}

impl Pressure {
    /// What L0 is heading for.
    pub fn forecast(&self, input: TablesPerSecond) -> StallForecast {
        StallForecast {
            current: Tables(self.l0_tables as f64),
            input,
            threshold: Tables(self.l0_slowdown_trigger as f64 - SPARE_TABLES),
        }
    }

    /// L0 is so full that RocksDB uses more than one thread: twice the trigger of a compaction, or
    /// a quarter of the way from there to slowing.
    fn is_l0_backlogged(&self) -> bool {
        let way = self.l0_slowdown_trigger.saturating_sub(self.l0_compaction_trigger);
        let quarter = self.l0_compaction_trigger.saturating_add(way / 4);
        self.l0_tables >= self.l0_compaction_trigger.saturating_mul(2).min(quarter)
    }
}

/// Why a merge must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Writers are slowed or stopped.
    Slowed,
    /// L0 is so full that RocksDB is pressed.
    L0Backlog,
    /// Compactions have so much before them that writers would soon be slowed.
    PendingBytes,
    /// Not known yet how fast tables come.
    RateUnknown,
    /// Writers would be slowed before it ends.
    WouldStall,
}

impl Forbidden {
    /// All reasons but `RateUnknown`, which is over in a second.
    pub const LASTING: [Self; 4] = [Self::Slowed, Self::L0Backlog, Self::PendingBytes, Self::WouldStall];

    /// As it is told.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slowed => "slowed",
            Self::L0Backlog => "l0-backlog",
            Self::PendingBytes => "pending-bytes",
            Self::RateUnknown => "rate-unknown",
            Self::WouldStall => "would-stall",
        }
    }
}

/// Whether a merge of so much time may begin, while tables come in at this rate
/// ([`FlushRate::tables_per_s`]).
///
/// # Errors
///
/// Why not. Ask again in a second.
pub fn may_run(
    pressure: &Pressure,
    input: Option<TablesPerSecond>,
    predicted: Seconds,
    parameters: &DedupParameters,
) -> Result<(), Forbidden> {
    let slowdown = pressure.pending_slowdown_bytes.0;
    if pressure.is_slowed {
        return Err(Forbidden::Slowed);
    }
    if pressure.is_l0_backlogged() {
        return Err(Forbidden::L0Backlog);
    }
    if slowdown > 0 && pressure.pending_compaction_bytes.0 >= slowdown / 2 {
        return Err(Forbidden::PendingBytes);
    }
    let input = input.ok_or(Forbidden::RateUnknown)?;
    if pressure.forecast(input).stalls_after(predicted * parameters.stall_margin) {
        return Err(Forbidden::WouldStall);
    }
    Ok(())
}

/// How long merges take, learned from those that ran.
#[derive(Clone, Copy, Debug)]
pub struct MergeTime {
    regression: Regression,
    /// When what was learned forbade a merge the last time, while it still does.
    forbade: Option<Time>,
}

impl Default for MergeTime {
    fn default() -> Self {
        Self { regression: Regression::new(Weights::of_server(&ModelParameters::default())), forbade: None }
    }
}

impl MergeTime {
    /// A merge of so many bytes of inputs took so long here, without what was waited for workers.
    pub fn learn(&mut self, bytes: Bytes, time: Seconds) {
        if time.is_plausible() {
            self.regression.learn(bytes, time.0);
        }
    }

    /// How long one of so many bytes will take.
    pub fn predict(&self, bytes: Bytes) -> Seconds {
        Seconds(self.line().at(bytes))
    }

    /// The most bytes that a merge can take and not run into a stall; `None` where there is no
    /// bound.
    pub fn max_bytes(
        &self,
        pressure: &Pressure,
        input: TablesPerSecond,
        parameters: &DedupParameters,
    ) -> Option<Bytes> {
        let latest = pressure.forecast(input).latest()? / parameters.stall_margin;
        max_within(self.line(), latest)
    }

    /// There is a merge, and it would take too long. Where more could be merged by what is assumed
    /// before any has run, what was learned fades until [`allows`](Self::allows): else it would
    /// forbid all that could correct it.
    pub fn forbids(&mut self, now: Time, pressure: &Pressure, input: TablesPerSecond, parameters: &DedupParameters) {
        let Some(latest) = pressure.forecast(input).latest() else { return self.allows() };
        let latest = latest / parameters.stall_margin;
        let unlearned = max_within(PRIOR, latest).unwrap_or(Bytes(u64::MAX));
        if max_within(self.line(), latest).is_none_or(|learned| learned >= unlearned) {
            return self.allows();
        }
        if let Some(then) = self.forbade.replace(now) {
            self.regression.fade(0.5_f64.powf(now.since(then).0 / FADE_HALF_LIFE.0));
        }
    }

    /// No merge waits for the time that it would take.
    pub fn allows(&mut self) {
        self.forbade = None;
    }

    fn line(&self) -> Line {
        self.regression.line(PRIOR)
    }
}

/// The most bytes of a merge that takes no longer than that, by this line; `None` where there is no
/// bound.
fn max_within(line: Line, time: Seconds) -> Option<Bytes> {
    let bytes = (time.0 - line.b) / line.a;
    (bytes < u64::MAX as f64).then_some(Bytes(bytes.max(0.0) as u64))
}

/// How fast the space that a store takes grows, net of what is freed: an exponential average over
/// samples of a second or more. A compaction takes space that is free again soon, so the average
/// follows slowly, and begins at no growth.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceGrowth {
    last: Option<(Time, Bytes)>,
    average: f64,
}

impl SpaceGrowth {
    /// No samples yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// So much room is left now. May be called at any time.
    pub fn observe(&mut self, now: Time, free_space: Bytes) {
        let Some((then, before)) = self.last else {
            self.last = Some((now, free_space));
            return;
        };
        let time = now.since(then);
        if time < MIN_SAMPLE {
            return;
        }
        self.last = Some((now, free_space));
        let rate = (before.0 as f64 - free_space.0 as f64) / time.0;
        let kept = 0.5_f64.powf(time.0 / GROWTH_HALF_LIFE.0);
        self.average = self.average * kept + rate * (1.0 - kept);
    }

    /// Nothing while the store shrinks.
    pub fn bytes_per_s(&self) -> BytesPerSecond {
        BytesPerSecond(self.average.max(0.0))
    }
}

/// Until when space must be won: where `spare` is left and `growth` is taken each second. `None`
/// while there is no hurry.
pub fn deadline(spare: Bytes, growth: BytesPerSecond) -> Option<Seconds> {
    let lasts = (growth > BytesPerSecond::ZERO).then(|| spare / growth);
    lasts.filter(|time| *time <= LONGEST_DEADLINE)
}
