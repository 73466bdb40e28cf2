//! Where the sums in samples begin: at the begin of the workload, not of the process.
//!
//! The monitor samples counters that run from the start of the process. A store that was loaded
//! first would show the load's stalls and energy in every sample of the workload; so what they were
//! when the workload began is taken off on the way out.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::monitor::RecordSink;
use crate::record::{Record, Sample};

/// The sums when the workload began; zero before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SampleBase {
    pub(crate) stall_ms: f64,
    pub(crate) delayed_ms: f64,
    pub(crate) energy_joules: f64,
}

impl SampleBase {
    fn take_off(&self, sample: &mut Sample) {
        // A sample that was being taken when the workload began may lie before it.
        sample.stall_ms = (sample.stall_ms - self.stall_ms).max(0.0);
        sample.delayed_ms = (sample.delayed_ms - self.delayed_ms).max(0.0);
        sample.energy_joules = (sample.energy_joules - self.energy_joules).max(0.0);
    }
}

/// A sink whose samples count from `base`.
pub(crate) fn counting_from(base: Arc<Mutex<SampleBase>>, sink: RecordSink) -> RecordSink {
    Arc::new(move |mut record| {
        if let Record::Sample(sample) = &mut record {
            base.lock().take_off(sample);
        }
        sink(record);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_load_used_is_not_in_the_workloads_samples() {
        let (base, records) = (Arc::new(Mutex::new(SampleBase::default())), Arc::new(Mutex::new(Vec::new())));
        let sink = counting_from(base.clone(), {
            let records = records.clone();
            Arc::new(move |record| records.lock().push(record))
        });
        *base.lock() = SampleBase { stall_ms: 100.0, delayed_ms: 10.0, energy_joules: 7.0 };
        let sample = |stall_ms, delayed_ms, energy_joules| {
            Record::Sample(Sample { stall_ms, delayed_ms, energy_joules, ..Sample::default() })
        };
        sink(sample(150.0, 10.0, 9.5));
        sink(sample(90.0, 10.0, 6.0));
        assert_eq!(*records.lock(), [sample(50.0, 0.0, 2.5), sample(0.0, 0.0, 0.0)]);
    }
}
