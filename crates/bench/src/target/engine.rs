//! Our store under test.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ecotone_energy::cores::Unbound;
use ecotone_energy::{EnergyMeter, PowerModel, ThreadDuties};
use ecotone_engine::{Direction, OpenMode, Store};
use ecotone_inspect::count_duplicates;
use ecotone_types::Duty;

use super::settle::{check_empty, until_idle};
use super::{CountedDuplicates, DedupWork, GcWork, Target, TargetKind, TargetSettings};
use crate::measure::{Measured, ProcessUsage};
use crate::{Error, Result};

const NAME: &str = TargetKind::Engine.name();

/// How long a store with a value log, or one that counts duplicates, must do nothing until it is
/// taken to have settled: its thread looks once a second whether there is something to collect, and
/// after a compaction whether there is something to merge.
const QUIET: Duration = Duration::from_secs(3);

/// How long what the store estimates may be behind its tables once they no longer change: it checks
/// after each compaction, on another thread.
const ESTIMATE_WAIT: Duration = Duration::from_secs(5);

/// How often it is asked meanwhile.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// [`ecotone_engine::Store`] as a target.
#[derive(Debug)]
pub struct EngineTarget {
    store: Arc<Store>,
    /// Tells the processor time of garbage collection and of compactions; the reason why there is
    /// none.
    meter: Measured<Meter>,
    /// Whether anybody wants to know of duplicates: what the store tells of them costs time with
    /// every question.
    asks_duplicates: bool,
}

/// The meter, of which only processor time is asked.
struct Meter(Arc<EnergyMeter>);

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}

impl EngineTarget {
    /// Opens a store of its own in `directory`: an empty or missing one, or with `existing` one
    /// that holds a store.
    pub fn open(directory: &Path, existing: bool, settings: &TargetSettings) -> Result<Self> {
        if !existing {
            check_empty(directory)?;
        }
        let mode = if existing { OpenMode::Open } else { OpenMode::Create };
        let mut builder = Store::builder(directory).mode(mode).settings(settings.store_options()?);
        // Nothing is metered where nobody asks for it.
        let meter = match (settings.separation_min_bytes, &settings.dedup) {
            (None, None) => Err("the store separates no values".into()),
            _ => meter(),
        };
        if let Ok(Meter(meter)) = &meter {
            builder = builder.duties(Arc::new(ThreadDuties::new(Arc::clone(meter), Arc::new(Unbound))));
        }
        let store = builder.open().map_err(failed("open"))?;
        Ok(Self { store: Arc::new(store), meter, asks_duplicates: settings.dedup.is_some() })
    }

    /// A store that is open already: for a server that runs a driver inside itself.
    pub fn of(store: Arc<Store>) -> Self {
        Self { store, meter: Err("the store was opened elsewhere".into()), asks_duplicates: false }
    }
}

impl Target for EngineTarget {
    fn name(&self) -> &'static str {
        NAME
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(failed("put"))
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let Some(found) = self.store.get(key).map_err(failed("get"))? else {
            return Ok(false);
        };
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32> {
        let mut scan = self.store.scan(key.., Direction::Forward, None).map_err(failed("scan"))?;
        for read in 0..entries {
            let Some(entry) = scan.next_entry().map_err(failed("scan"))? else {
                return Ok(read);
            };
            black_box((entry.key.last(), entry.value.last()));
        }
        Ok(entries)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.store.delete(key).map_err(failed("delete"))
    }

    fn flush(&self) -> Result<()> {
        self.store.flush(true).map_err(failed("flush"))
    }

    fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<bool> {
        self.flush()?;
        let looks_by_itself = self.store.value_log().is_some() || self.asks_duplicates;
        let quiet = if looks_by_itself { QUIET } else { Duration::ZERO };
        until_idle(limit, stop, quiet, || {
            let now = self.store.properties().map_err(failed("read properties"))?;
            let collects = self.store.value_log().is_some_and(|values| values.gc_segments > 0);
            let compacts = now.compaction_pending || now.running_compactions > 0 || now.running_flushes > 0;
            // Its merges are none of RocksDB's own compactions.
            let merges = || self.store.try_dedup().is_some_and(|dedup| dedup.is_busy);
            Ok(compacts || collects || merges())
        })
    }

    fn stall_time(&self) -> Result<Duration> {
        Ok(Duration::from_micros(self.store.counters().stall_us()))
    }

    fn gc(&self) -> Result<Option<GcWork>> {
        Ok(self.store.value_log().map(|values| GcWork {
            bytes: values.relocated_bytes,
            throttled_ms: values.throttled_ms,
            cpu_seconds: match &self.meter {
                Ok(Meter(meter)) => Ok(meter.reading().cpu(Duty::Gc).0),
                Err(reason) => Err(reason.clone()),
            },
        }))
    }

    fn dedup(&self) -> Result<Option<DedupWork>> {
        if !self.asks_duplicates {
            return Ok(None);
        }
        // To count anew each second what there is would be part of what is measured.
        let Some(properties) = self.store.try_dedup().or_else(|| self.store.dedup()) else { return Ok(None) };
        let compaction_cpu_seconds = self.meter.as_ref().map_err(Clone::clone).map(|Meter(meter)| {
            let reading = meter.reading();
            let all = [Duty::Compaction, Duty::Gc, Duty::Dedup].map(|duty| reading.cpu(duty).0);
            // The checks have the duty of the merges, and are none. What merges copy is garbage
            // collection's.
            all.iter().sum::<f64>() - properties.check_cpu_us as f64 / 1e6
        });
        Ok(Some(DedupWork { properties, compaction_cpu_seconds }))
    }

    fn count_duplicates(&self) -> Result<Option<CountedDuplicates>> {
        let _pause = self.store.pause_compactions().map_err(failed("pause compactions"))?;
        let tables = self.store.live_tables().map_err(failed("list tables"))?;
        let entries: u64 = tables.iter().map(|table| table.entries).sum();
        let begin = Instant::now();
        let estimate = loop {
            match self.store.dedup() {
                Some(behind) if behind.total_keys != entries && begin.elapsed() < ESTIMATE_WAIT => {
                    std::thread::sleep(ASK_INTERVAL);
                }
                estimate => break estimate,
            }
        };
        let before = ProcessUsage::now().cpu_seconds;
        let truth = count_duplicates(&self.store).map_err(failed("count duplicates"))?;
        Ok(Some(CountedDuplicates { estimate, truth, cpu_seconds: ProcessUsage::now().cpu_seconds - before }))
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.store.directory())
    }
}

fn meter() -> Measured<Meter> {
    // Any model will do: joules are not asked for.
    let model = PowerModel::hardware(1.0, 1.0).map_err(|error| error.to_string())?;
    EnergyMeter::start(model).map(Meter).map_err(|error| error.to_string())
}

fn failed(operation: &'static str) -> impl Fn(ecotone_engine::Error) -> Error {
    move |error| Error::target(NAME, operation, error)
}
