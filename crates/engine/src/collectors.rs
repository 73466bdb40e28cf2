//! The collectors of what tables say of their entries: which ones a table gets, and which of them
//! see an entry first.
//!
//! One collector sees each entry once, whatever it collects: that of [`SampleCollector`] in a plain
//! store, that of [`crate::gc::references`] where there is a value log, and before either that of
//! [`crate::expired`]. What it leaves in the table depends on the entries alone, so that a table
//! that a worker wrote can be counted again.

use std::sync::Arc;

use ecotone_rocks::properties::{EntryKind, TableCollector, TableCollectorFactory, TableContext, add_table_collector};
use rust_rocksdb::Options;

use crate::dedup::filters;
use crate::dedup::samples::{self, SampledValue};
use crate::dedup::sketch::{KeySketch, Sketching};
use crate::expired::{self, ExpiryCollector};
use crate::gc::references;
use crate::table_format::Collects;

/// Adds the collectors of what the tables are to tell.
pub(crate) fn add_collectors(options: &mut Options, collects: Collects, shared: &Arc<Sketching>) {
    if collects.is_any() {
        add_table_collector(options, Arc::new(Collectors { collects, shared: shared.clone() }));
    }
}

/// The collector of one table, for whoever counts again what another one wrote; and the properties
/// that the table may lack, since they only serve estimates.
pub(crate) fn recounting(collects: Collects) -> (Box<dyn TableCollector>, [&'static str; 3]) {
    let may_lack = [samples::PROPERTY, filters::PROPERTY, expired::PROPERTY];
    (collector(collects, Sketching::new(0).into()), may_lack)
}

fn collector(collects: Collects, shared: Arc<Sketching>) -> Box<dyn TableCollector> {
    let keys = || KeySketch::new(collects, shared);
    let of_keys: Option<Box<dyn TableCollector>> = match collects {
        Collects { references: true, .. } => Some(references::collector(keys())),
        Collects { references: false, samples: false, filter_bits_per_key: 0, .. } => None,
        _ => Some(Box::new(SampleCollector { keys: keys() })),
    };
    match of_keys {
        Some(of_keys) if !collects.expiry => of_keys,
        of_keys => Box::new(ExpiryCollector::before(of_keys)),
    }
}

#[derive(Debug)]
struct Collectors {
    collects: Collects,
    shared: Arc<Sketching>,
}

impl TableCollectorFactory for Collectors {
    fn collector(&self, _context: TableContext) -> Option<Box<dyn TableCollector>> {
        Some(collector(self.collects, self.shared.clone()))
    }
}

/// The collector of a plain store.
#[derive(Debug)]
struct SampleCollector {
    keys: KeySketch,
}

impl TableCollector for SampleCollector {
    fn begin(&mut self) -> u64 {
        self.keys.begin()
    }

    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, _file_bytes: u64) {
        match kind {
            EntryKind::Put => self.keys.add(key, Some(SampledValue::inline(value.len())), sequence),
            EntryKind::Delete | EntryKind::SingleDelete => self.keys.add(key, None, sequence),
            _ => (),
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        self.keys.finish()
    }
}
