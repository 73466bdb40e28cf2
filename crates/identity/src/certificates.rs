//! Keys, requests and certificates, as the library makes them.

use ecotone_types::ServerId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SerialNumber,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::names::{FederationId, MemberId, dns_name, random};
use crate::renewal::{BACKDATED_S, LIFETIME_S};
use crate::token::Hash;

/// How PEM calls a private key.
pub(crate) const KEY_TAG: &str = "PRIVATE KEY";
/// And a certificate.
pub(crate) const CERTIFICATE_TAG: &str = "CERTIFICATE";

/// A certificate, and that of the authority that has signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The server's.
    pub certificate: CertificateDer<'static>,
    /// The authority's.
    pub authority: CertificateDer<'static>,
}

/// Seconds that an authority is valid: ten years.
const AUTHORITY_LIFETIME_S: u64 = 10 * 365 * 24 * 3600;
/// Bytes of a serial number, of which the first bit is none.
const SERIAL_BYTES: usize = 16;
/// The longest request for a certificate. One for a P-256 key has some 200 bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 4096;

fn refused(action: &'static str) -> impl Fn(rcgen::Error) -> Error {
    move |error| Error::crypto(action, error)
}

/// A new key: ECDSA on P-256.
pub(crate) fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(refused("make a key"))
}

pub(crate) fn key_from_der(der: &[u8]) -> Result<KeyPair> {
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ECDSA_P256_SHA256)
        .map_err(refused("read a key"))
}

/// A request for a certificate of this key. It says nothing else: names are given by the authority.
pub(crate) fn request(key: &KeyPair) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(key).map_err(refused("make a request for a certificate"))?;
    Ok(request.der().to_vec())
}

/// A key that somebody asks a certificate for, and has shown to have.
pub(crate) struct Requested(CertificateSigningRequestParams);

impl Requested {
    /// Reads a request and checks that it is signed by its key.
    pub(crate) fn read(request: &[u8]) -> Result<Requested> {
        if request.len() > MAX_REQUEST_BYTES {
            return Err(Error::Certificate(format!("a request for a certificate of {} bytes", request.len())));
        }
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(|error| Error::Certificate(format!("the request for a certificate is none: {error}")))?;
        if request.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(Error::Certificate("the request is for a key that is not ECDSA on P-256".into()));
        }
        Ok(Requested(request))
    }
}

/// Checks that this is a request for a certificate that the authority would sign.
///
/// # Errors
/// [`Error::Certificate`] says why not.
pub fn check_request(request: &[u8]) -> Result<()> {
    Requested::read(request).map(drop)
}

/// The SHA-256 of the key that a request is for. Who asks again shows the same one.
///
/// # Errors
/// [`Error::Certificate`] for a request that is none.
pub fn requested_key(request: &[u8]) -> Result<[u8; 32]> {
    let requested = Requested::read(request)?;
    Ok(Hash::of(&requested.0.public_key.subject_public_key_info()).bytes())
}

fn time(at: Timestamp) -> Result<OffsetDateTime> {
    i64::try_from(at.0)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or_else(|| Error::Usage(format!("the clock says {} s since 1970, which no certificate can: set it", at.0)))
}

fn serial() -> Result<SerialNumber> {
    let mut bytes: [u8; SERIAL_BYTES] = random()?;
    // Positive, and of the same length always.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// The certificate of an authority, signed by itself.
pub(crate) fn authority(federation: FederationId, key: &KeyPair, now: Timestamp) -> Result<CertificateDer<'static>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("ecotone federation {federation}"));
    params.serial_number = Some(serial()?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = time(now.minus(BACKDATED_S))?;
    params.not_after = time(now.plus(AUTHORITY_LIFETIME_S))?;
    let certificate = params.self_signed(key).map_err(refused("sign the authority's certificate"))?;
    Ok(certificate.der().clone())
}

/// The authority with its key, ready to sign.
pub(crate) fn issuer(certificate: &CertificateDer<'_>, key: KeyPair) -> Result<Issuer<'static, KeyPair>> {
    Issuer::from_ca_cert_der(certificate, key).map_err(refused("read the authority's certificate"))
}

/// When a certificate that is made now ends.
pub(crate) fn ends(now: Timestamp) -> Timestamp {
    now.plus(LIFETIME_S)
}

/// The certificate of a server. All in it but the key is the authority's.
pub(crate) fn server(
    issuer: &Issuer<'static, KeyPair>,
    federation: FederationId,
    member: MemberId,
    name: &ServerId,
    mut requested: Requested,
    now: Timestamp,
) -> Result<CertificateDer<'static>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    let dns = dns_name(federation, member);
    let dns = dns.as_str().try_into().map_err(refused("name a certificate"))?;
    params.subject_alt_names = vec![SanType::DnsName(dns)];
    params.serial_number = Some(serial()?);
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = time(now.minus(BACKDATED_S))?;
    params.not_after = time(ends(now))?;
    requested.0.params = params;
    let certificate = requested.0.signed_by(issuer).map_err(refused("sign a certificate"))?;
    Ok(certificate.der().clone())
}
