//! Two servers under one name: the second is refused as long as the first is there.

#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::spoiler::tempting;
use common::wire::ReportRequest;
use common::wire::coordinator_client::CoordinatorClient;
use common::{Storeless, wait_until};
use ecotone_policy::units::Seconds;
use tonic::{Code, Status};

/// Where the two say that they listen. Nobody connects to them here.
const HERE: &str = "127.0.0.1:9";
const ELSEWHERE: &str = "127.0.0.1:13";

#[test]
fn a_second_server_of_a_name_is_refused_while_the_first_reports() {
    let coordinator = Storeless::start("coordinator", |options| options.policy.stale_after = Seconds(2.0));
    let address = coordinator.federation.address().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut client = runtime.block_on(CoordinatorClient::connect(format!("http://{address}"))).unwrap();
    let mut report = |name: &str, address: &str, session: u64| -> Result<(), Status> {
        let request =
            ReportRequest { load: Some(tempting(name)), address: address.into(), session, ..ReportRequest::default() };
        runtime.block_on(client.report(request)).map(|_| ())
    };

    let own = report("coordinator", ELSEWHERE, 1).unwrap_err();
    assert_eq!(own.code(), Code::AlreadyExists, "{own}");

    report("edge", HERE, 1).unwrap();
    let refused = report("edge", ELSEWHERE, 1).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    for said in ["edge", HERE, ELSEWHERE, "--name"] {
        assert!(refused.message().contains(said), "{said}: {refused}");
    }

    // The same server, started anew where it was.
    report("edge", HERE, 2).unwrap();
    assert!(report("edge", ELSEWHERE, 1).is_err());
    // And gone for good.
    wait_until("its name to be free", || report("edge", ELSEWHERE, 1).is_ok());
    assert!(report("edge", HERE, 2).is_err());
}
