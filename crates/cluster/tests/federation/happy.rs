//! A federation that works: jobs run elsewhere, the data is the same, and each byte crosses the
//! network once each way.

use crate::common;

use common::{Owner, Storeless, wait_until};
use ecotone_cluster::JobOutcome;
use ecotone_engine::{DedupMode, Direction, Separation};
use ecotone_rocks::salvage::SalvagedTable;

/// What the metadata of one job may add: CURRENT, MANIFEST, OPTIONS and IDENTITY.
const METADATA_BYTES: u64 = 128 << 10;

#[test]
fn a_store_under_load_is_compacted_elsewhere_and_holds_the_same_data() {
    is_compacted_elsewhere(None, DedupMode::Off, &[]);
}

/// The owner counts again what each table that comes back says of the segments it names.
#[test]
fn so_is_one_with_values_apart() {
    is_compacted_elsewhere(Some(Separation::from_bytes(50)), DedupMode::Off, &["ecotone.samples", "ecotone.values"]);
}

/// And what each says of its keys.
#[test]
fn so_is_one_whose_tables_tell_of_their_keys() {
    is_compacted_elsewhere(None, DedupMode::Filter, &["ecotone.filter", "ecotone.samples"]);
}

fn is_compacted_elsewhere(separation: Option<Separation>, mode: DedupMode, collected: &[&str]) {
    let mut owner = Owner::start(|_, store| {
        store.separation = separation;
        store.dedup.mode = Some(mode);
    });
    let address = owner.federation.address().to_owned();
    let worker = Storeless::start("worker", |options| options.join = Some(address));
    owner.write_until("three offloaded jobs", |owner| owner.offloaded() >= 3);
    assert_eq!(owner.fallbacks("bad-result"), 0, "an honest result was refused");

    // A snapshot keeps what it saw, through compactions elsewhere that know of it only what the job
    // says.
    let snapshot_model = owner.model.clone();
    let store = owner.store().clone();
    let snapshot = store.snapshot();
    let before = owner.offloaded();
    owner.write_until("jobs while the snapshot lives", |owner| owner.offloaded() >= before + 3);
    owner.flush();
    owner.compact();
    let kept: Vec<_> = snapshot.scan(.., Direction::Forward).unwrap().map(Result::unwrap).collect();
    assert!(kept.iter().map(|(key, value)| (key, value)).eq(snapshot_model.iter()), "the snapshot has changed");
    drop(snapshot);
    let mut seen = 0;
    for table in store.live_tables().unwrap() {
        // Where values are separated one more compaction may have come between.
        let Ok(table) = SalvagedTable::open(&table.directory.join(table.name)) else { continue };
        let names = table.description().collected.keys().filter(|name| name.starts_with("ecotone."));
        assert!(names.eq(collected), "{:?}", table.description());
        seen += 1;
    }
    assert!(seen > 0);
    drop(store);
    owner.check();

    let taken = worker.federation.statistics();
    assert!(taken.taken >= 6, "{taken:?}");
    wait_until("the worker's folder to be empty", || worker.worker_folders() == 0);
    owner.finish();
    assert_eq!(worker.worker_folders(), 0);
}

#[test]
fn a_jobs_bytes_cross_the_network_once_each_way() {
    let mut owner = Owner::start(|_, store| {
        store.memtable_bytes = 4 << 20;
        store.target_file_bytes = 4 << 20;
        store.level_base_bytes = 16 << 20;
        store.l0_compaction_trigger = 4;
        store.compression = ecotone_engine::Compression::None;
    });
    let address = owner.federation.address().to_owned();
    let worker = Storeless::start("worker", |options| options.join = Some(address));
    // Jobs of some ten tables of 4 MiB: much longer than the ranges that they are read by.
    let store = owner.store().clone();
    let mut number = 0_u64;
    let mut model = std::mem::take(&mut owner.model);
    while owner.ended.count(JobOutcome::Offloaded) < 6 {
        let key = format!("key{:08}", number.wrapping_mul(7_919) % 20_000).into_bytes();
        let value = common::value_of(&key, number, 1_000);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
        number += 1;
        assert!(number < 400_000, "{:?}", owner.federation.statistics());
    }
    drop(store);
    owner.model = model;
    // The counters of both sides and the list of jobs speak of the same jobs when nothing is under
    // way.
    wait_until("all jobs to end", || {
        let received = || {
            let at_owner = owner.federation.statistics().network_bytes_received;
            (at_owner, worker.federation.statistics().network_bytes_received)
        };
        let before = received();
        let at_worker = worker.federation.statistics();
        at_worker.running_worker_jobs == 0
            && at_worker.taken as usize == owner.ended.count(JobOutcome::Offloaded)
            && before == received()
    });
    let jobs = owner.ended.of(JobOutcome::Offloaded);
    assert_eq!(owner.federation.statistics().fallbacks, Default::default());
    let inputs: u64 = jobs.iter().map(|job| job.report.input_bytes.0).sum();
    let outputs: u64 = jobs.iter().map(|job| job.report.output_bytes.0).sum();
    let to_worker = worker.federation.statistics().network_bytes_received;
    let to_owner = owner.federation.statistics().network_bytes_received;
    println!(
        "{} jobs: {inputs} bytes in, {to_worker} to the worker ({:.4}); {outputs} bytes out, {to_owner} to the owner ({:.4})",
        jobs.len(),
        to_worker as f64 / inputs as f64,
        to_owner as f64 / outputs as f64,
    );
    let allowed = |bytes: u64| (bytes as f64 * 1.03) as u64 + METADATA_BYTES * jobs.len() as u64;
    assert!(to_worker >= inputs && to_worker <= allowed(inputs));
    assert!(to_owner >= outputs && to_owner <= allowed(outputs));
    owner.finish();
}
