//! The input rate of a store, predicted (ECO-KVS section VI-B, Monitor, and section VII-D), and
//! what it means in L0 tables.

use std::collections::VecDeque;

use crate::machine::{LoadSample, RateParameters, RateSummary};
use crate::prequential::{PrequentialError, ema_weight};
use ecotone_types::units::{BytesPerSecond, TablesPerSecond};

/// An exponential moving average over one-second samples: the newest of a window of n weighs 2 /
/// (n + 1). ECO-KVS section VII-D: interval 1 s, window 3 s, so that it comes within 13 % of a new
/// rate after three seconds and within 4 % after five.
///
/// The same samples tell how much user input fills one L0 table, from the last tables that were
/// flushed. This takes in at once what the table format, compression and overwrites within a
/// memtable do to the bytes.
///
/// **While writes stall the average is held** (`hold_while_stalled`; ours). What comes in then is
/// what the store lets in, a small part of what is offered. A compaction that is decided at the end
/// of a stall would be forecast to have all the time in the world, stay at home, and end in the
/// next stall.
///
/// Bounded: at most `flush_window_tables + 2` marks are kept.
#[derive(Clone, Debug)]
pub struct InputRate {
    parameters: RateParameters,
    weight: f64,
    average: Option<f64>,
    samples: u64,
    /// Of the sample before.
    was_stalled: bool,
    errors: PrequentialError,
    marks: VecDeque<FlushMark>,
}

/// The counters of a store at a sample before which tables had been flushed.
#[derive(Clone, Copy, Debug)]
struct FlushMark {
    /// User bytes that had left the memtables.
    input_bytes: u64,
    tables: u64,
}

impl InputRate {
    /// No samples yet.
    pub fn new(parameters: &RateParameters) -> Self {
        Self {
            weight: ema_weight(parameters.window_samples),
            average: None,
            samples: 0,
            was_stalled: false,
            errors: PrequentialError::new(parameters.error_window_samples),
            marks: VecDeque::new(),
            parameters: parameters.clone(),
        }
    }

    /// Takes the sample of the last second. The prediction made a second ago is compared with it
    /// first.
    pub fn observe(&mut self, sample: &LoadSample) {
        self.observe_flushes(sample);
        // A stall at either end of the second was a stall within it.
        let is_stalled = sample.stalled || self.was_stalled;
        self.was_stalled = sample.stalled;
        if self.parameters.hold_while_stalled && is_stalled && self.average.is_some() {
            return;
        }
        let rate = sample.input_bytes_per_s.0;
        if let Some(predicted) = self.average {
            self.errors.record(predicted, rate);
        }
        self.samples += 1;
        self.average = Some(self.average.map_or(rate, |average| average + self.weight * (rate - average)));
    }

    fn observe_flushes(&mut self, sample: &LoadSample) {
        // Bytes in a memtable include its own structure, so this errs by a part of one memtable; a
        // window of many tables makes that small.
        let input_bytes = sample.input_bytes_total.saturating_sub(sample.memtable_bytes).0;
        let mark = FlushMark { input_bytes, tables: sample.flushed_tables_total };
        match self.marks.back() {
            Some(last) if mark.tables == last.tables => return,
            // Counters that run backwards are those of a store that was opened anew.
            Some(last) if mark.tables < last.tables || mark.input_bytes < last.input_bytes => self.marks.clear(),
            _ => {}
        }
        self.marks.push_back(mark);
        // Drop a mark only when the one after it still spans the window.
        while self
            .marks
            .get(1)
            .is_some_and(|second| mark.tables - second.tables >= u64::from(self.parameters.flush_window_tables))
        {
            self.marks.pop_front();
        }
    }

    /// The rate predicted for the next second; `None` before the first sample.
    pub fn bytes_per_s(&self) -> Option<BytesPerSecond> {
        self.average.map(BytesPerSecond)
    }

    /// User bytes that fill one L0 table: by the last flushes, or the prior before there were two
    /// samples with flushes.
    pub fn input_bytes_per_table(&self) -> f64 {
        if let (Some(first), Some(last)) = (self.marks.front(), self.marks.back())
            && last.tables > first.tables
            && last.input_bytes > first.input_bytes
        {
            return (last.input_bytes - first.input_bytes) as f64 / (last.tables - first.tables) as f64;
        }
        self.parameters.prior_input_bytes_per_table.as_f64()
    }

    /// The predicted rate in L0 tables, S_in of ECO-KVS equation 1 for one second; `None` before
    /// the first sample.
    pub fn tables_per_s(&self) -> Option<TablesPerSecond> {
        self.average.map(|average| TablesPerSecond(average / self.input_bytes_per_table()))
    }

    /// The rate, and how good its predictions were.
    pub fn summary(&self) -> RateSummary {
        RateSummary {
            predicted: self.bytes_per_s().unwrap_or(BytesPerSecond::ZERO),
            samples: self.samples,
            input_bytes_per_table: self.input_bytes_per_table(),
            recent_error: self.errors.recent(),
            mean_error: self.errors.mean(),
        }
    }
}
