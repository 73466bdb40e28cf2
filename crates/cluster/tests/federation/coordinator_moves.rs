//! The coordinator moves with the leader of the federation's log.

use crate::common;

use common::{Owner, wait_until};
use ecotone_cluster::{Federation, JobOutcome};

use crate::made::{Made, coordinates, known};

/// Jobs that are offloaded under each leader.
const JOBS: u64 = 5;

#[test]
fn jobs_are_offloaded_again_under_the_next_leader() {
    let made = Made::by("first");
    let first = made.coordinator();
    let address = first.federation.address().to_owned();
    made.joined("owner", &address);
    let mut owner = Owner::start(|options, _| made.being("owner", Some(&address), options));
    let other = made.member("other", &address);
    wait_until("three to vote", || {
        let all: [&Federation; 3] = [&first.federation, &owner.federation, &other.federation];
        all.iter().all(|federation| known(federation).voters.len() == 3)
    });
    owner.write_until("jobs under the first leader", |owner| owner.offloaded() >= JOBS);
    let before = known(&first.federation);
    assert!(before.leads());

    // It goes while jobs are under way: those on it and those that it is to place.
    owner.write(2_000);
    drop(first);
    let offloaded = owner.offloaded();
    owner.write_until("jobs under the next leader", |owner| owner.offloaded() >= offloaded + JOBS);
    let now = known(&owner.federation);
    assert!(now.term > before.term && now.leader != before.leader, "{now:?}");
    let leads: Vec<bool> = [&*owner.federation, &other.federation].iter().map(|server| coordinates(server)).collect();
    assert_eq!(leads.iter().filter(|leads| **leads).count(), 1, "{leads:?}");

    // It comes back, and reports to whoever leads now: as one that takes jobs.
    let join = other.federation.address().to_owned();
    let back = made.start("first", &join);
    let leader: &Federation = if leads[0] { &owner.federation } else { &other.federation };
    wait_until("its reports", || {
        let servers = leader.servers();
        servers.iter().any(|server| server.name.as_str() == "first" && server.takes_jobs == Some(Ok(())))
    });
    assert!(!coordinates(&back.federation));
    let offloaded = owner.offloaded();
    owner.write_until("jobs with three servers again", |owner| owner.offloaded() >= offloaded + JOBS);
    // Each job has one end, whoever has placed it.
    let ended = owner.ended.count(JobOutcome::Offloaded) as u64;
    assert!(ended >= offloaded + JOBS, "{ended} of {offloaded} jobs have ended");
    owner.finish();
}
