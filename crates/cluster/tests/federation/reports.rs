//! What servers report of one another for people who monitor them, and what reports of liars and of
//! earlier releases make of it.

use crate::common;

use common::spoiler::tempting;
use common::wire::coordinator_client::CoordinatorClient;
use common::wire::{Activity, Load, ReportRequest};
use common::{Storeless, wait_for};
use ecotone_cluster::{KnownServer, Writers};
use tokio::runtime::Builder;

fn names(servers: &[KnownServer]) -> Vec<(&str, bool, bool)> {
    servers.iter().map(|server| (server.name.as_str(), server.is_self, server.is_coordinator)).collect()
}

#[test]
fn a_coordinator_knows_all_and_a_member_itself_and_its_coordinator() {
    let coordinator = Storeless::start("coordinator", |_| {});
    let address = coordinator.federation.address().to_owned();
    let members = ["one", "two"].map(|name| Storeless::start(name, |options| options.join = Some(address.clone())));
    let servers =
        wait_for("both members", || Some(coordinator.federation.servers()).filter(|servers| servers.len() == 3));
    assert_eq!(names(&servers), [("coordinator", true, true), ("one", false, false), ("two", false, false)]);
    for (server, member) in servers[1..].iter().zip(&members) {
        assert_eq!((server.address.as_str(), server.takes_jobs), (member.federation.address(), Some(Ok(()))));
        assert_eq!(server.load.as_ref().unwrap().input_bytes_per_s.0, 1e6);
        assert_eq!(server.activity.as_ref().unwrap().writers, Writers::Run);
    }
    let of_one =
        wait_for("the coordinator", || Some(members[0].federation.servers()).filter(|servers| servers.len() == 2));
    assert_eq!(names(&of_one), [("one", true, false), ("coordinator", false, true)]);
    assert_eq!((of_one[1].address.as_str(), of_one[1].takes_jobs), (address.as_str(), None));
    assert!(of_one[1].load.is_some() && of_one[1].activity.is_some());
}

#[test]
fn what_a_report_lacks_or_cannot_be_is_not_shown() {
    let coordinator = Storeless::start("coordinator", |_| {});
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let address = format!("http://{}", coordinator.federation.address());
    let mut client = runtime.block_on(CoordinatorClient::connect(address)).unwrap();
    let mut report = |load: Load, activity: Option<Activity>, address: &str| {
        let request = ReportRequest { load: Some(load), activity, address: address.into(), ..ReportRequest::default() };
        runtime.block_on(client.report(request)).map(|reply| reply.into_inner())
    };
    let activity = |watts| Activity { watts, energy_source: "model".into(), ops_per_s: 5.0, ..Activity::default() };

    // An earlier release knows of no activity; it gets the coordinator's all the same, which it
    // ignores.
    let reply = report(tempting("earlier"), None, "a:1").unwrap();
    assert_eq!(reply.load.unwrap().server, "coordinator");
    report(tempting("honest"), Some(activity(3.0)), "a:2").unwrap();
    report(tempting("liar"), Some(activity(f64::NAN)), "a:3").unwrap();
    report(Load { cores: -1.0, ..tempting("nonsense") }, Some(activity(3.0)), "\u{1b}[2J,self=1").unwrap();
    assert!(report(tempting("endless"), None, &"a".repeat(1 << 16)).is_err());

    let servers = coordinator.federation.servers();
    let reported: Vec<_> = (servers[1..].iter())
        .map(|server| {
            (server.name.as_str(), server.load.is_some(), server.activity.as_ref().map(|reported| reported.watts))
        })
        .collect();
    assert_eq!(
        reported,
        [("earlier", true, None), ("honest", true, Some(3.0)), ("liar", true, None), ("nonsense", false, Some(3.0))]
    );
}
