//! A server with two stores: compactions of both run elsewhere, and neither is in the other's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common;

use common::{Model, Owner, PATIENCE, Storeless, assert_equals, fill, open_beside, small, wait_until};
use ecotone_engine::{OpenMode, Store};

/// What the second store did, with all that was written to it.
fn write_both(owner: &mut Owner, second: &Arc<Store>, model: &mut Model, enough: impl Fn(&Owner, &Store) -> bool) {
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut seed = 1000;
            // Also where the other side has failed.
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < 2 * PATIENCE {
                seed += model.len() as u64 + 1;
                fill(second, model, seed, 500, 2_000);
            }
        });
        owner.write_until("jobs of both stores", |owner| enough(owner, second));
        is_over.store(true, Ordering::Relaxed);
        beside.join().unwrap();
    });
}

#[test]
fn compactions_of_two_stores_run_elsewhere_and_one_may_close() {
    let mut owner = Owner::start(|_, _| ());
    let address = owner.federation.address().to_owned();
    let worker = Storeless::start("worker", |options| options.join = Some(address));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let second = Arc::new(open_beside(&owner.federation, &path, small()));
    let mut model = Model::new();
    let done = |store: &Store| store.counters().remote_compactions;
    write_both(&mut owner, &second, &mut model, |owner, second| done(owner.store()) >= 3 && done(second) >= 3);
    assert_eq!(owner.fallbacks("bad-result"), 0, "an honest result was refused");
    owner.check();
    assert_equals(&second, &model);

    // Jobs of one store are not those of the other that closes.
    let before = done(owner.store());
    Arc::try_unwrap(second).unwrap_or_else(|_| panic!("nobody else has it")).close().unwrap();
    owner.write_until("jobs after the other store has closed", |owner| done(owner.store()) >= before + 3);
    owner.finish();
    wait_until("the worker's folder to be empty", || worker.worker_folders() == 0);
    let second = Store::open(&path, OpenMode::Open, small()).unwrap();
    assert_equals(&second, &model);
    second.close().unwrap();
}
