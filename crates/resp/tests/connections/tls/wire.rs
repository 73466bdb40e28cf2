//! A client by TLS.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::certificates::{Authority, Issued};
use super::common::wire::request;

pub const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

pub struct TlsWire(pub BufReader<StreamOwned<ClientConnection, TcpStream>>);

/// What a client is set to that trusts `authority`, speaks `version` and shows `shows`.
pub fn config(
    authority: &Authority,
    version: &'static SupportedProtocolVersion,
    shows: Option<&Issued>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    match shows {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap()).unwrap()
        }
    }
}

impl TlsWire {
    /// Connects and goes through the handshake, as far as a client sees one.
    pub fn connect(address: SocketAddr, config: ClientConfig) -> io::Result<Self> {
        Self::connect_as(address, config, true)
    }

    /// The same as a client that waits for acknowledgements or does not (`TCP_NODELAY`).
    pub fn connect_as(address: SocketAddr, config: ClientConfig, has_no_delay: bool) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.set_nodelay(has_no_delay)?;
        let name = "localhost".try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(Self(BufReader::new(StreamOwned::new(connection, stream))))
    }

    pub fn to(address: SocketAddr, authority: &Authority) -> Self {
        Self::connect(address, config(authority, &TLS13, None)).unwrap()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next line, or string with its length. Nothing at the end.
    pub fn try_reply(&mut self) -> io::Result<Vec<u8>> {
        let mut reply = Vec::new();
        self.0.read_until(b'\n', &mut reply)?;
        if reply.starts_with(b"$") {
            let length: i64 = std::str::from_utf8(&reply[1..reply.len() - 2]).unwrap().parse().unwrap();
            let begin = reply.len();
            reply.resize(begin + usize::try_from(length).map_or(0, |length| length + 2), 0);
            self.0.read_exact(&mut reply[begin..])?;
        }
        Ok(reply)
    }

    pub fn try_ask(&mut self, words: &str) -> io::Result<String> {
        self.0.get_mut().write_all(&request(&crate::common::words(words)))?;
        Ok(String::from_utf8_lossy(&self.try_reply()?).into_owned())
    }

    pub fn ask(&mut self, words: &str) -> String {
        self.try_ask(words).unwrap()
    }

    /// The certificate that the server has shown.
    pub fn shown(&self) -> CertificateDer<'static> {
        self.0.get_ref().conn.peer_certificates().unwrap()[0].clone()
    }
}
