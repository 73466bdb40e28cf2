//! Clients that no server of ours would be: they take every server.

use std::sync::Arc;

use ecotone_identity::Identity;
use ecotone_identity::tls::{self, Protocol};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion};

/// Shows no certificate. It names no protocol yet.
pub fn anonymous(version: &'static SupportedProtocolVersion) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Careless))
        .with_no_client_auth()
}

/// Shows the certificate of `identity`, for calls.
pub fn showing(identity: &Arc<Identity>) -> Arc<ClientConfig> {
    let strict = tls::client_config(identity, Protocol::Calls, None).unwrap();
    let mut careless = ClientConfig::clone(&strict);
    careless.dangerous().set_certificate_verifier(Arc::new(Careless));
    Arc::new(careless)
}

/// Takes every certificate and every signature.
#[derive(Debug)]
pub struct Careless;

impl ServerCertVerifier for Careless {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
