//! Clients that come by TLS: who gets in, and that it is all the same from there.

#[path = "../../common/certificates.rs"]
mod certificates;
use crate::common;
mod handshakes;
mod renewal;
mod requests;
mod wire;

use std::path::Path;
use std::time::Duration;

use certificates::Authority;
use common::served::{Served, any_port};
use ecotone_resp::serve::{EventLoops, Listen, ListenTls, TlsFiles};
use ecotone_resp::service::Limits;

/// A server for plain clients and for those by TLS, in whose folder lie its files.
struct TestServer {
    folder: tempfile::TempDir,
    /// Who signed its certificate, and signs those of its clients.
    authority: Authority,
    served: Served,
}

struct Asks {
    limits: Limits,
    certificates: bool,
    handshake_within: Duration,
}

impl Default for Asks {
    fn default() -> Self {
        Self { limits: Limits::default(), certificates: false, handshake_within: ListenTls::HANDSHAKE_WITHIN }
    }
}

fn place(asks: Asks) -> TestServer {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    let files = files(folder.path(), &authority, asks.certificates);
    let tls = ListenTls { addresses: any_port(), files, handshake_within: asks.handshake_within };
    let listen = Listen { addresses: any_port(), tls: Some(tls), event_loops: EventLoops::All(2), ..Listen::default() };
    TestServer { folder, served: Served::listening(&listen, asks.limits), authority }
}

/// Files of a server in `folder`.
fn files(folder: &Path, authority: &Authority, asks_certificates: bool) -> TlsFiles {
    let (certificate, key) = authority.server().write(folder);
    let client_ca = folder.join("ca.pem");
    certificates::replace(&client_ca, &authority.certificate);
    TlsFiles { certificate, key, client_ca: asks_certificates.then_some(client_ca) }
}
