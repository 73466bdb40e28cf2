//! The protocol's version and its generated messages.
//!
//! The version is part of the package's name, and so of the path of every call: no call can be
//! without it, and no service answers one of another version. That holds on a connection that was
//! opened anew beneath a caller that shook hands with what ran there before.

use tonic::body::Body;
use tonic::codegen::http::{Response, Uri};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::error::{Error, root_cause};

/// Version of `proto/federation.proto`. Raised, there in the package's name, too, when a peer of
/// the former version could misunderstand a message; peers of another version are refused in the
/// handshake, with every call, and again with every offer of a job.
///
/// 2: values may be compressed. A worker of version 1 would count no references for the entries
/// that lead to them.
pub const PROTOCOL_VERSION: u32 = 2;

const _: () = assert!(
    is_own(wire::peer_server::SERVICE_NAME.as_bytes()),
    "the package of federation.proto is of another version than PROTOCOL_VERSION"
);

/// Bytes of one message that either side accepts. A job's description grows with the number of its
/// input tables.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// What the package's name says before its version.
const PACKAGE: &str = "ecotone.federation.v";
/// Under which a refusal carries the version of the server that refused.
const VERSION_KEY: &str = "ecotone-protocol-version";

/// Messages and services generated from `proto/federation.proto`, which documents them.
#[allow(missing_docs, clippy::all)]
pub mod wire {
    tonic::include_proto!("ecotone.federation.v2");
}

/// The version in the name of a service.
const fn version_in(service: &[u8]) -> Option<u32> {
    let package = PACKAGE.as_bytes();
    let mut at = 0;
    while at < package.len() {
        if at >= service.len() || service[at] != package[at] {
            return None;
        }
        at += 1;
    }
    let mut version: u32 = 0;
    let first = at;
    while at < service.len() && service[at].is_ascii_digit() {
        // Nine digits fit; more are no version of ours.
        if at - first == 9 {
            return None;
        }
        version = version * 10 + (service[at] - b'0') as u32;
        at += 1;
    }
    if at > first && at < service.len() && service[at] == b'.' { Some(version) } else { None }
}

const fn is_own(service: &[u8]) -> bool {
    matches!(version_in(service), Some(PROTOCOL_VERSION))
}

/// The same services, which now refuse calls of another version with a reason.
pub fn refuse_other_versions(services: Routes) -> Routes {
    services.into_axum_router().fallback(refuse).into()
}

/// The answer to a call that no service of this version takes.
async fn refuse(called: Uri) -> Response<Body> {
    let service = called.path().trim_start_matches('/');
    let what = match version_in(service.as_bytes()) {
        Some(PROTOCOL_VERSION) => {
            return Status::unimplemented(format!("no service answers {}", called.path())).into_http();
        }
        Some(theirs) => format!("the call is of version {theirs}"),
        None => "the call names no version".into(),
    };
    let mut refusal = Status::failed_precondition(format!(
        "this server speaks protocol version {PROTOCOL_VERSION}, {what}; run the same release of ecotone on both"
    ));
    refusal.metadata_mut().insert(VERSION_KEY, PROTOCOL_VERSION.into());
    refusal.into_http()
}

/// What a call to `peer` came to that ended with `status`.
pub fn failed_call(peer: impl Into<String>, status: &Status) -> Error {
    let theirs = status.metadata().get(VERSION_KEY).and_then(|version| version.to_str().ok()?.parse().ok());
    match (status.code(), theirs) {
        (Code::FailedPrecondition, Some(theirs)) => {
            Error::Version { peer: peer.into(), theirs, ours: PROTOCOL_VERSION }
        }
        // Where the call never arrived, the cause says why.
        _ => match std::error::Error::source(status) {
            Some(cause) => Error::unreachable(peer, root_cause(cause)),
            None => Error::unreachable(peer, status.message()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_of(service: &str) -> Option<u32> {
        version_in(service.as_bytes())
    }

    #[test]
    fn a_version_is_read_only_from_a_package_of_ours() {
        assert_eq!(version_of("ecotone.federation.v12.Peer"), Some(12));
        for foreign in [
            "",
            "ecotone.federation",
            "ecotone.federation.v.Peer",
            "ecotone.federation.v1",
            "ecotone.federation.v1x.Peer",
            "ecotone.federation.Peer",
            "another.federation.v1.Peer",
            "ecotone.federation.v4294967297.Peer",
        ] {
            assert_eq!(version_of(foreign), None, "{foreign}");
        }
    }

    #[tokio::test]
    async fn a_refusal_tells_the_caller_which_versions_met() {
        let refusal = refuse(Uri::from_static("/ecotone.federation.v7.Peer/Hello")).await;
        let status = Status::from_header_map(refusal.headers()).unwrap();
        // As a server of another version would say it.
        let mut foreign = status.clone();
        foreign.metadata_mut().insert(VERSION_KEY, 7.into());
        let error = failed_call("edge:1", &foreign);
        assert!(matches!(&error, Error::Version { peer, theirs: 7, ours: PROTOCOL_VERSION } if peer == "edge:1"));
        let own = format!("version {PROTOCOL_VERSION},");
        assert!(status.message().contains(&own) && status.message().contains("version 7;"), "{status}");
    }
}
