//! Two servers under one name: the second is refused as long as the first is there, and the jobs of
//! a refused one are not placed.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::spoiler::tempting;
use common::wire::coordinator_client::CoordinatorClient;
use common::wire::coordinator_server::{Coordinator, CoordinatorServer};
use common::wire::peer_server::{Peer, PeerServer};
use common::wire::{
    HelloReply, HelloRequest, Load, PlaceReply, PlaceRequest, ProbeReply, ProbeRequest, ReportReply, ReportRequest,
};
use common::{Owner, SLOW, Storeless, wait_until};
use ecotone_cluster::PROTOCOL_VERSION;
use ecotone_types::units::Seconds;
use tokio::runtime::{Builder, Runtime};
use tonic::{Code, Request, Response, Status};

/// Where the two say that they listen. Nobody connects to them here.
const HERE: &str = "127.0.0.1:9";
const ELSEWHERE: &str = "127.0.0.1:13";

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A report that any coordinator takes.
fn report_of(name: &str, address: &str, session: u64) -> ReportRequest {
    ReportRequest { load: Some(tempting(name)), address: address.into(), session, ..ReportRequest::default() }
}

#[test]
fn a_second_server_of_a_name_is_refused_while_the_first_reports() {
    let coordinator = Storeless::start("coordinator", |options| options.policy.stale_after = Seconds(2.0));
    let address = coordinator.federation.address().to_owned();
    let runtime = runtime();
    let mut client = runtime.block_on(CoordinatorClient::connect(format!("http://{address}"))).unwrap();
    let mut report = |name: &str, address: &str, session: u64| -> Result<(), Status> {
        runtime.block_on(client.report(report_of(name, address, session))).map(|_| ())
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
    // Not started anew after all: two of one name and one address take turns.
    let refused = report("edge", HERE, 1).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    for said in ["edge", HERE, "--name", "--listen"] {
        assert!(refused.message().contains(said), "{said}: {refused}");
    }
    report("edge", HERE, 2).unwrap();
    // And gone for good.
    wait_until("its name to be free", || report("edge", ELSEWHERE, 1).is_ok());
    assert!(report("edge", HERE, 2).is_err());
}

#[test]
fn a_server_too_many_is_refused_until_another_was_silent_for_long() {
    let coordinator = Storeless::start("coordinator", |options| {
        options.policy.max_servers = 2;
        options.policy.stale_after = Seconds(2.0);
        options.policy.forget_after = Seconds(2.0);
    });
    let address = coordinator.federation.address().to_owned();
    let runtime = runtime();
    let mut client = runtime.block_on(CoordinatorClient::connect(format!("http://{address}"))).unwrap();
    let mut report = |name: &str, address: &str| -> Result<(), Status> {
        runtime.block_on(client.report(report_of(name, address, 1))).map(|_| ())
    };
    report("edge", HERE).unwrap();
    let refused = report("fog", ELSEWHERE).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    for said in ["fog", ELSEWHERE, "max_servers"] {
        assert!(refused.message().contains(said), "{said}: {refused}");
    }
    report("edge", HERE).unwrap();
    wait_until("a place to be free", || report("fog", ELSEWHERE).is_ok());
    assert_eq!(report("edge", HERE).unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn only_a_server_whose_reports_are_taken_is_given_a_place() {
    let coordinator = Storeless::start("coordinator", |_| ());
    let address = coordinator.federation.address().to_owned();
    let runtime = runtime();
    runtime.block_on(async {
        let mut client = CoordinatorClient::connect(format!("http://{address}")).await.unwrap();
        client.report(report_of("worker", ELSEWHERE, 7)).await.unwrap();
        // So slow that any other server is faster.
        let of_edge = |session| {
            let load = Some(Load { core_speed: SLOW, ..tempting("edge") });
            ReportRequest { load, ..report_of("edge", HERE, session) }
        };
        client.report(of_edge(1)).await.unwrap();
        let request = |owner: &str, session| PlaceRequest {
            owner: owner.into(),
            session,
            job: 1,
            input_bytes: 1 << 20,
            output_level: 1,
            local_seconds: Some(1e6),
            ..PlaceRequest::default()
        };
        let place = client.place(request("edge", 1)).await.unwrap().into_inner();
        assert!(!place.worker.is_empty(), "{place:?}");
        // A second server of the name, one that never reported, and one that calls itself as the
        // coordinator.
        assert!(client.report(report_of("edge", ELSEWHERE, 2)).await.is_err());
        for (owner, session) in [("edge", 2), ("stranger", 1), ("coordinator", 1)] {
            let refused = client.place(request(owner, session)).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
            for said in [owner, "report", "coordinator"] {
                assert!(refused.message().contains(said), "{said}: {refused}");
            }
        }
        // The later one of two at one address.
        client.report(of_edge(3)).await.unwrap();
        assert!(client.place(request("edge", 1)).await.is_err());
        assert!(client.place(request("edge", 3)).await.is_ok());
    });
}

/// Refuses or takes all reports, and counts what it is asked.
#[derive(Clone, Default)]
struct Moody {
    takes_reports: Arc<AtomicBool>,
    reports: Arc<AtomicUsize>,
    places: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Coordinator for Moody {
    async fn report(&self, _request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        // All this time there is a connection that could carry a question.
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.reports.fetch_add(1, Ordering::SeqCst);
        if self.takes_reports.load(Ordering::SeqCst) {
            Ok(Response::new(ReportReply::default()))
        } else {
            Err(Status::already_exists("the name is taken"))
        }
    }

    async fn place(&self, _request: Request<PlaceRequest>) -> Result<Response<PlaceReply>, Status> {
        self.places.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(PlaceReply { local_reason: "no-server-enabled".into(), ..PlaceReply::default() }))
    }
}

#[tonic::async_trait]
impl Peer for Moody {
    async fn hello(&self, _request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { protocol_version: PROTOCOL_VERSION, ..HelloReply::default() }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        Ok(Response::new(ProbeReply { payload: vec![0; request.into_inner().reply_bytes as usize] }))
    }
}

#[test]
fn a_server_whose_reports_are_refused_asks_nothing() {
    let runtime = runtime();
    let moody = Moody::default();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(PeerServer::new(moody.clone()))
            .add_service(CoordinatorServer::new(moody.clone()))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );
    let mut owner = Owner::start(|options, _| options.join = Some(address));
    let (reports, places) = (moody.reports.clone(), moody.places.clone());
    owner.write_until("refused reports and local compactions", |owner| {
        reports.load(Ordering::SeqCst) >= 5 && owner.ended.because("coordinator-unavailable") >= 8
    });
    assert_eq!(places.load(Ordering::SeqCst), 0);
    moody.takes_reports.store(true, Ordering::SeqCst);
    owner.write_until("a question", |_| places.load(Ordering::SeqCst) > 0);
    owner.finish();
}
