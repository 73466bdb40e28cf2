//! The input rate: how soon it follows, how well it predicts, and what it makes of flushes.
use crate::common;

use common::{MIB, idle};
use ecotone_policy::machine::{LoadSample, RateParameters};
use ecotone_policy::prequential::relative_error;
use ecotone_policy::rate::InputRate;
use ecotone_types::units::{Bytes, BytesPerSecond};

fn at_rate(bytes_per_s: f64) -> LoadSample {
    LoadSample { input_bytes_per_s: BytesPerSecond(bytes_per_s), ..idle("a") }
}

/// A store of 8 MiB memtables that takes input at some rate, sampled once a second.
struct Store {
    input: u64,
    sample: LoadSample,
}

impl Store {
    fn new() -> Self {
        Self { input: 0, sample: idle("a") }
    }

    fn second(&mut self, bytes: u64) -> LoadSample {
        self.input += bytes;
        self.sample.input_bytes_per_s = BytesPerSecond(bytes as f64);
        self.sample.input_bytes_total = Bytes(self.input);
        self.sample.flushed_tables_total = self.input / (8 * MIB);
        self.sample.memtable_bytes = Bytes(self.input % (8 * MIB));
        self.sample.clone()
    }
}

/// ECO-KVS section VII-D: "the predicted input rate converges to the actual input rate within a
/// short period of 3-5 seconds".
#[test]
fn after_a_step_the_rate_converges_in_three_to_five_seconds() {
    for (before, after) in [(10e6, 40e6), (40e6, 10e6), (1.0, 20e6)] {
        let mut rate = InputRate::new(&RateParameters::default());
        for _ in 0..30 {
            rate.observe(&at_rate(before));
        }
        let step = after - before;
        let missing: Vec<f64> = (0..6)
            .map(|_| {
                rate.observe(&at_rate(after));
                ((after - rate.bytes_per_s().unwrap().0) / step).abs()
            })
            .collect();
        assert!(missing[1] > 0.2, "two seconds are not enough to tell a step from noise: {missing:?}");
        assert!(missing[2] < 0.13 && missing[4] < 0.04, "{missing:?}");
    }
}

/// ECO-KVS section VII-D: an average error rate of approximately 3.6 %, over a load that changes
/// now and then.
#[test]
fn the_mean_error_of_a_load_that_changes_now_and_then_is_a_few_percent() {
    let mut rate = InputRate::new(&RateParameters::default());
    for second in 0..600u32 {
        // Steps every minute, and a ripple of 3 % upon them.
        let level = [20e6, 30e6, 15e6][(second / 60 % 3) as usize];
        let ripple = 1.0 + 0.03 * f64::from(second).sin();
        rate.observe(&at_rate(level * ripple));
    }
    let summary = rate.summary();
    assert!(summary.mean_error.unwrap() < 0.04, "{summary:?}");
    assert!(summary.recent_error.unwrap() < 0.04, "{summary:?}");
    assert_eq!(summary.samples, 600);
}

#[test]
fn a_pause_is_no_error_of_infinite_size() {
    let mut rate = InputRate::new(&RateParameters::default());
    for bytes_per_s in [1e6, 0.0, 0.0, 1e6] {
        rate.observe(&at_rate(bytes_per_s));
    }
    assert!(rate.summary().mean_error.unwrap().is_finite());
}

#[test]
fn tables_are_counted_by_what_recent_flushes_took() {
    let mut rate = InputRate::new(&RateParameters::default());
    let mut store = Store::new();
    assert_eq!(rate.tables_per_s(), None);
    rate.observe(&store.second(20 * MIB));
    assert_eq!(rate.input_bytes_per_table(), 64.0 * MIB as f64, "one sample tells nothing yet");
    for _ in 0..20 {
        rate.observe(&store.second(20 * MIB));
    }
    let error = relative_error(rate.input_bytes_per_table(), 8.0 * MIB as f64).unwrap();
    assert!(error < 0.02, "{}", rate.input_bytes_per_table());
    assert!((rate.tables_per_s().unwrap().0 - 2.5).abs() < 0.05);
}

#[test]
fn old_flushes_are_forgotten_and_a_store_that_is_opened_anew_starts_afresh() {
    let mut rate = InputRate::new(&RateParameters::default());
    let mut sample = idle("a");
    let mut flush = |rate: &mut InputRate, tables: u64, bytes_per_table: u64| {
        for _ in 0..tables {
            sample.flushed_tables_total += 1;
            sample.input_bytes_total += Bytes(bytes_per_table);
            rate.observe(&sample);
        }
        sample.clone()
    };
    flush(&mut rate, 1000, 8 * MIB);
    assert_eq!(rate.input_bytes_per_table(), 8.0 * MIB as f64);
    // The memtable was made larger: after a window of tables nothing of the old ones counts.
    let mut last = flush(&mut rate, 33, 64 * MIB);
    assert_eq!(rate.input_bytes_per_table(), 64.0 * MIB as f64);

    last.flushed_tables_total = 1;
    last.input_bytes_total = Bytes(MIB);
    rate.observe(&last);
    assert_eq!(rate.input_bytes_per_table(), 64.0 * MIB as f64, "the prior again");
    last.flushed_tables_total = 3;
    last.input_bytes_total = Bytes(9 * MIB);
    rate.observe(&last);
    assert_eq!(rate.input_bytes_per_table(), 4.0 * MIB as f64);
}

/// Out of a stall comes the load that went into it.
#[test]
fn a_stall_does_not_shadow_what_is_offered() {
    let stalled = |bytes_per_s: f64| LoadSample { stalled: true, ..at_rate(bytes_per_s) };
    let mut rate = InputRate::new(&RateParameters::default());
    // A store that is stalled from its first second on has nothing else to tell.
    rate.observe(&stalled(1e6));
    assert_eq!(rate.bytes_per_s(), Some(BytesPerSecond(1e6)));
    let mut rate = InputRate::new(&RateParameters::default());
    let mut as_published = InputRate::new(&RateParameters { hold_while_stalled: false, ..RateParameters::default() });
    for rate in [&mut rate, &mut as_published] {
        for _ in 0..10 {
            rate.observe(&at_rate(20e6));
        }
        for _ in 0..10 {
            rate.observe(&stalled(1e6));
        }
        // The stall ended somewhere within this second.
        rate.observe(&at_rate(9e6));
    }
    assert_eq!(rate.bytes_per_s(), Some(BytesPerSecond(20e6)));
    assert!(as_published.bytes_per_s().unwrap().0 < 6e6);
    for _ in 0..5 {
        rate.observe(&at_rate(10e6));
    }
    assert!(relative_error(rate.bytes_per_s().unwrap().0, 10e6).unwrap() < 0.04, "a calm second counts again");
}
