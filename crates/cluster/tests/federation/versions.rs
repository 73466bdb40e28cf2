//! Calls of another version of the protocol, made without a handshake, as on a connection that was
//! opened anew.

use crate::common;

use common::Storeless;
use common::wire::{HelloReply, HelloRequest};
use ecotone_cluster::PROTOCOL_VERSION;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Calls `path` with an empty message.
async fn call(channel: &Channel, path: String) -> Result<HelloReply, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<HelloRequest, HelloReply>::default();
    client
        .unary(Request::new(HelloRequest::default()), path.parse().unwrap(), codec)
        .await
        .map(|reply| reply.into_inner())
}

fn channel(server: &Storeless) -> impl Future<Output = Channel> {
    let address = format!("http://{}", server.federation.address());
    async move { Channel::from_shared(address).unwrap().connect().await.unwrap() }
}

const CALLS: [&str; 6] =
    ["Peer/Hello", "Peer/Probe", "Coordinator/Report", "Coordinator/Place", "Worker/Run", "Worker/Release"];

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_another_version_is_refused_with_both_versions() {
    let server = tokio::task::block_in_place(|| Storeless::start("server", |_| ()));
    let channel = channel(&server).await;
    for foreign in [0, PROTOCOL_VERSION + 1] {
        for name in CALLS {
            let status = call(&channel, format!("/ecotone.federation.v{foreign}.{name}")).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{name}: {status}");
            assert!(status.message().contains(&format!("version {PROTOCOL_VERSION},")), "{status}");
            assert!(status.message().contains(&format!("version {foreign};")), "{status}");
            assert!(status.message().contains("run the same release"), "{status}");
        }
    }
    call(&channel, format!("/ecotone.federation.v{PROTOCOL_VERSION}.Peer/Hello")).await.unwrap();
    tokio::task::block_in_place(|| drop(server));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_version_is_refused() {
    let server = tokio::task::block_in_place(|| Storeless::start("server", |_| ()));
    let channel = channel(&server).await;
    for name in CALLS {
        for package in ["ecotone.federation", "ecotone.federation.v"] {
            let status = call(&channel, format!("/{package}.{name}")).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{name}: {status}");
            assert!(status.message().contains("names no version"), "{status}");
        }
    }
    // What is not there in this version is no matter of versions.
    let status = call(&channel, format!("/ecotone.federation.v{PROTOCOL_VERSION}.Janitor/Sweep")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    tokio::task::block_in_place(|| drop(server));
}
