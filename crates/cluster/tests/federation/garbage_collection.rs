//! Garbage collection in a federation: nobody else has the values, and the policy learns of it all
//! the same.

use crate::common;

use common::{Owner, Storeless};
use ecotone_engine::{Separation, StoreSettings};
use ecotone_policy::gc::GcParameters;
use ecotone_policy::machine::LocalReason;
use ecotone_policy::policy::PolicyName;
use ecotone_types::units::Bytes;

#[test]
fn forced_garbage_collection_is_a_job_that_stays_and_that_no_model_learns_from() {
    let coordinator = Storeless::start("coordinator", |options| options.policy.policy = PolicyName::EdgePilot);
    let address = coordinator.federation.address().to_owned();
    let mut owner = Owner::start(|options, store| {
        options.policy.policy = PolicyName::EdgePilot;
        options.join = Some(address);
        *store = StoreSettings {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 64 * 1024 }),
            gc: GcParameters {
                begin_ratio: 1.02,
                end_ratio: 1.01,
                forced_ratio: 1.05,
                urgent_ratio: 1.06,
                min_garbage_bytes: Bytes(64 * 1024),
                ..GcParameters::default()
            },
            ..std::mem::take(store)
        };
    });
    let name = LocalReason::ValuesAreHere.name();
    let stayed = |owner: &Owner| owner.ended.because(name);
    let learned = |owner: &Owner| owner.federation.models().models.iter().map(|model| model.samples).sum::<u64>();
    owner.write_until("garbage collections, and a job that the models learn from", |owner| {
        stayed(owner) >= 5 && learned(owner) > 0
    });
    // Before the jobs, each of which is reported after it was learned from, for its time and its
    // energy.
    let learned = learned(&owner);
    let jobs = owner.ended.0.lock().unwrap().clone();
    let (collections, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.reason == name);
    assert!(collections.iter().all(|job| job.report.worker == job.report.owner && job.predicted.is_none()));
    assert!(collections.iter().all(|job| job.report.input_bytes.0 > 0 && job.report.seconds.0 > 0.0));
    // Each was asked about; one that came to nothing has not ended.
    assert!(owner.federation.statistics().kept[name] >= collections.len() as u64);
    assert!(learned <= 2 * others.len() as u64, "{learned} of {} jobs, of {}", others.len(), collections.len());
    owner.check();
    owner.finish();
}
