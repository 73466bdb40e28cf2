//! TLS between servers: version 1.3 only, both sides with certificates, no session resumed and no
//! early data, so that every connection is checked against what holds when it begins.
//!
//! One port takes three kinds of connections, told apart by their protocol name (ALPN). Only
//! [`Protocol::Enroll`] lets somebody in who shows no certificate, or one that has ended or is not
//! valid yet, and it leads nowhere but to the authority.

use std::fmt;
use std::sync::Arc;

use ecotone_types::ServerId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    ServerConfig, SignatureScheme,
};

use crate::clock::{Clock, Timestamp};
use crate::failure::NotThisOne;
use crate::identity::{Identity, Verifiers, unix_time};
use crate::names::Peer;
use crate::token::{Hash, JoinToken, fingerprint};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Calls: HTTP/2.
    Calls,
    /// Ranges of files.
    Files,
    /// To join, or to renew a certificate.
    Enroll,
}

impl Protocol {
    /// All there are.
    pub const ALL: [Protocol; 3] = [Protocol::Calls, Protocol::Files, Protocol::Enroll];

    /// Its name in the handshake.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Calls => b"h2",
            Protocol::Files => b"ecotone-files/1",
            Protocol::Enroll => b"ecotone-enroll/1",
        }
    }

    /// The first protocol of this server that the peer names.
    pub fn named<'a>(mut names: impl Iterator<Item = &'a [u8]>) -> Option<Protocol> {
        names.find_map(|name| Protocol::ALL.into_iter().find(|protocol| protocol.alpn() == name))
    }
}

/// TLS's view of a [`Clock`].
#[derive(Debug)]
struct Time(Arc<dyn Clock>);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.now()))
    }
}

/// How this server takes connections.
///
/// # Errors
/// The library does not know TLS 1.3, which is a fault of the build.
pub fn server_config(identity: &Arc<Identity>, protocol: Protocol) -> Result<Arc<ServerConfig>, Error> {
    let provider = identity.verifiers.provider.clone();
    let checks = Checks { identity: identity.clone(), expected: None, at_any_time: protocol == Protocol::Enroll };
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(Time(identity.clock.clone())))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(checks))
        .with_cert_resolver(Arc::new(Shown(identity.clone())));
    config.alpn_protocols = vec![protocol.alpn().to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// How this server connects to another one: to the one called `expected`, or to any of its
/// federation.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(
    identity: &Arc<Identity>,
    protocol: Protocol,
    expected: Option<ServerId>,
) -> Result<Arc<ClientConfig>, Error> {
    let checks = Checks { identity: identity.clone(), expected, at_any_time: false };
    let config =
        ClientConfig::builder_with_details(identity.verifiers.provider.clone(), Arc::new(Time(identity.clock.clone())))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(checks))
            .with_client_cert_resolver(Arc::new(Shown(identity.clone())));
    Ok(Arc::new(finished(config, protocol)))
}

/// How a server that has no certificate yet connects to the federation of its token.
///
/// # Errors
/// As [`server_config`].
pub fn joining_config(token: &JoinToken, clock: &Arc<dyn Clock>) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let pinned = Pinned { authority: *token.authority(), provider: provider.clone() };
    let config = ClientConfig::builder_with_details(provider, Arc::new(Time(clock.clone())))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    Ok(Arc::new(finished(config, Protocol::Enroll)))
}

fn finished(mut config: ClientConfig, protocol: Protocol) -> ClientConfig {
    config.alpn_protocols = vec![protocol.alpn().to_vec()];
    config.resumption = Resumption::disabled();
    // It would tell everybody on the way which federation this is.
    config.enable_sni = false;
    config
}

/// The name that a client gives to TLS. Who the server is, the verifier says.
pub fn server_name(identity: &Identity) -> ServerName<'static> {
    name_or_any(identity.tls_name())
}

/// As [`server_name`], for a server that has not joined.
pub fn joining_server_name() -> ServerName<'static> {
    name_or_any("federation.ecotone".into())
}

fn name_or_any(name: String) -> ServerName<'static> {
    // An address is a server name as well; the names above are always of DNS.
    ServerName::try_from(name).unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()))
}

/// The certificate in use.
struct Shown(Arc<Identity>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().key.clone())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Accepts servers of this federation.
struct Checks {
    identity: Arc<Identity>,
    expected: Option<ServerId>,
    /// A certificate of another time, as clocks differ or it was not renewed, is good enough to renew
    /// it: the authority says whether its server is still one of the federation.
    at_any_time: bool,
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("expected", &self.expected).finish_non_exhaustive()
    }
}

fn not_this_one(what: NotThisOne) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(what))))
}

impl Checks {
    /// The rules beyond the chain of signatures.
    fn check(&self, peer: &Peer) -> Result<(), Error> {
        let own = self.identity.own();
        if peer.federation != own.federation {
            return Err(not_this_one(NotThisOne::OtherFederation { theirs: peer.federation.to_string() }));
        }
        if self.identity.is_removed(peer.member) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        match &self.expected {
            Some(expected) if *expected != peer.name => Err(not_this_one(NotThisOne::OtherServer {
                expected: expected.to_string(),
                presented: peer.name.to_string(),
            })),
            _ => Ok(()),
        }
    }
}

fn read_peer(certificate: &CertificateDer<'_>) -> Result<Peer, Error> {
    Peer::of(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// The name in a certificate, as TLS has it.
fn own_name(peer: &Peer) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(crate::names::dns_name(peer.federation, peer.member))
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// How a peer shows that it has the key of its certificate, on either side.
macro_rules! signatures {
    ($($provider:ident).+) => {
        /// Version 1.2 is never negotiated.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedCipherSuite))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.$($provider).+.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$($provider).+.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Checks {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let peer = read_peer(end_entity)?;
        self.identity.verifiers.of_servers.verify_server_cert(
            end_entity,
            intermediates,
            &own_name(&peer)?,
            ocsp_response,
            now,
        )?;
        self.check(&peer)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!(identity.verifiers.provider);
}

impl ClientCertVerifier for Checks {
    fn client_auth_mandatory(&self) -> bool {
        !self.at_any_time
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A server has one certificate; a hint would only tell strangers which federation this is.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let peer = read_peer(end_entity)?;
        let now = Timestamp(now.as_secs());
        let at = if self.at_any_time { now.min(peer.ends).max(peer.begins) } else { now };
        self.identity.verifiers.of_clients.verify_client_cert(end_entity, intermediates, unix_time(at))?;
        self.check(&peer)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!(identity.verifiers.provider);
}

/// Accepts any server of the federation whose authority has this fingerprint.
#[derive(Debug)]
struct Pinned {
    authority: Hash,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_authority =
            |certificate: &&CertificateDer<'_>| fingerprint(certificate).is_ok_and(|found| found.is(&self.authority));
        let authority = intermediates
            .iter()
            .find(is_authority)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?
            .clone()
            .into_owned();
        let verifiers =
            Verifiers::new(&authority).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let peer = read_peer(end_entity)?;
        verifiers.of_servers.verify_server_cert(end_entity, &[], &own_name(&peer)?, ocsp_response, now)
    }

    signatures!(provider);
}

/// The federation and server that a peer has shown in a handshake.
///
/// # Errors
/// It has shown none.
pub fn shown_by(certificates: Option<&[CertificateDer<'_>]>) -> Result<Peer, Error> {
    let certificate = certificates.and_then(<[_]>::first).ok_or(Error::NoCertificatesPresented)?;
    read_peer(certificate)
}
