//! The paper's way of counting: what is asked of which table.

use std::sync::Arc;

use ecotone_policy::dedup::estimate::{Estimator, Filtered, TableSketch};
use ecotone_policy::dedup::filter::{FilterView, build};
use ecotone_policy::dedup::machine::{Command, Counting, Event, TableFacts};
use ecotone_policy::dedup::ordered::OrderedHashes;
use ecotone_policy::dedup::plan::Table;
use ecotone_policy::dedup::sketches::KeySketches;
use ecotone_policy::dedup::{DedupMachine, DedupParameters, DedupThreshold};
use ecotone_policy::duplicates::KeySample;
use ecotone_types::units::{Bytes, Time};

const KEYS: u64 = 20_000;

/// A hash in which nothing is to be seen.
fn hash(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn table(number: u64, level: u32) -> Table {
    let (first, last) = (b"k00000".to_vec(), b"k99999".to_vec());
    Table { number, level, first, last, bytes: Bytes::from_mib(4), entries: KEYS, is_busy: false }
}

/// Table 1 has just been written; of table 2 there is a filter, and samples of none.
struct Keys {
    written: Arc<OrderedHashes>,
    filter: Vec<u8>,
}

impl KeySketches for Keys {
    fn one_in(&self) -> u64 {
        64
    }

    fn samples(&self, _table: u64) -> Option<&[KeySample]> {
        None
    }

    fn filter(&self, table: u64) -> Option<FilterView<'_>> {
        (table == 2).then(|| FilterView::parse(&self.filter).unwrap())
    }

    fn key_hashes(&self, table: u64) -> Option<Arc<OrderedHashes>> {
        (table == 1).then(|| self.written.clone())
    }
}

#[test]
fn filters_below_are_asked_for_all_keys_that_were_written() {
    let mut written = OrderedHashes::default();
    (0..KEYS).for_each(|key| written.push(format!("k{key:05}").as_bytes(), hash(key)));
    // Half of the keys below are above as well.
    let below: Vec<_> = (KEYS / 2..KEYS * 3 / 2).map(hash).collect();
    let keys = Keys { written: written.into(), filter: build(&below, 10.5) };
    let tables = [table(1, 1), table(2, 2)];
    let threshold = DedupThreshold::try_from(50.0).unwrap();
    let mut machine = DedupMachine::new(Counting::Filters, Some(threshold), DedupParameters::default());
    let woken = Event::Woken { compactions: vec![vec![1]], flushed_tables: 0 };
    assert_eq!(machine.handle(Time::default(), woken), Command::ReadTables);
    machine.handle(Time::default(), Event::TablesRead(TableFacts { tables: &tables, keys: &keys }));
    let [check] = machine.checked() else { panic!("{:?}", machine.checked()) };
    let upper = TableSketch { hashes: Some(&keys.written), ..tables[0].sketch(&[]) };
    let lower = TableSketch { filter: keys.filter(2), ..tables[1].sketch(&[]) };
    assert_eq!(check.estimate, Filtered { one_in: 64 }.count(&[upper], &[lower]));
    assert_eq!((check.written.as_slice(), check.estimate.one_in), (&[1][..], 1));
    assert!((check.estimate.duplicate_keys as f64 / KEYS as f64 - 0.5).abs() < 0.02, "{check:?}");
}
