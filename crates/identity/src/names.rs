//! Names in certificates: of the federation, of a server in it, and what a peer's certificate says.
//!
//! A certificate has one DNS name, `<member id>.<federation id>.ecotone`, and the server's name as
//! its common name. The member id is a number that the federation's log gives to who joins, and
//! never again, so a server that was removed, or lost its disk, comes back as another one.

use std::fmt;
use std::str::FromStr;

use ecotone_types::ServerId;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clock::Timestamp;
use crate::error::{Error, Result};

/// What all names in certificates end in. It is no domain: nothing ever looks it up.
const SUFFIX: &str = "ecotone";
/// Bytes of an id in a certificate.
const ID_BYTES: usize = 8;
/// The longest name of a server in a certificate: what X.509 allows a common name.
pub const MAX_NAME_BYTES: usize = 64;

/// Bytes nobody can foresee.
///
/// # Errors
/// [`Error::Crypto`]: the kernel gives none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::crypto("draw random numbers", "the kernel gives none"))?;
    Ok(bytes)
}

/// Bytes in hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that so many lower-case digits say; `None` for any other text.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// A federation. Drawn when it is made; no two meet by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FederationId([u8; ID_BYTES]);

impl FederationId {
    /// An id of these bytes, which somebody has drawn.
    pub fn from_bytes(bytes: [u8; ID_BYTES]) -> FederationId {
        FederationId(bytes)
    }

    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn draw() -> Result<FederationId> {
        random().map(FederationId)
    }

    /// Its bytes.
    pub fn bytes(self) -> [u8; ID_BYTES] {
        self.0
    }
}

/// A server in its federation: the number that the log gives it when it joins, from 1 on, and never
/// gives again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

impl MemberId {
    /// The server that a federation begins with.
    pub const FIRST: MemberId = MemberId(1);

    /// The server of this number.
    pub fn from_number(number: u64) -> MemberId {
        MemberId(number)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How both are shown, and read again: 16 hexadecimal digits.
macro_rules! digits {
    ($name:ident, $to_bytes:expr, $from_bytes:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&to_hex(&$to_bytes(self.0)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<$name> {
                let what = || Error::Certificate(format!("{:?} is no id: 16 hexadecimal digits", beginning(text)));
                from_hex(text).map($from_bytes).map($name).ok_or_else(what)
            }
        }
    };
}

digits!(FederationId, std::convert::identity, std::convert::identity::<[u8; ID_BYTES]>);
digits!(MemberId, u64::to_be_bytes, u64::from_be_bytes);

/// The beginning of a text from elsewhere: it can neither flood nor forge a log.
fn beginning(text: &str) -> String {
    text.chars().take(32).flat_map(char::escape_debug).collect()
}

/// The DNS name in the certificate of a server.
pub(crate) fn dns_name(federation: FederationId, member: MemberId) -> String {
    format!("{member}.{federation}.{SUFFIX}")
}

/// The name that a client gives to TLS where it knows no more of the server than its federation.
pub(crate) fn federation_dns_name(federation: FederationId) -> String {
    format!("{federation}.{SUFFIX}")
}

/// Checks a server's name for a certificate.
///
/// # Errors
/// It is longer than a certificate's common name may be.
pub fn check_name(name: &ServerId) -> Result<()> {
    if name.as_str().len() > MAX_NAME_BYTES {
        return Err(Error::Usage(format!(
            "the name {name} has {} bytes, in a federation with certificates it may have {MAX_NAME_BYTES}; give a shorter one (--name)",
            name.as_str().len()
        )));
    }
    Ok(())
}

/// What a certificate says of its server. Whether it is to be believed is another matter: see
/// [`crate::tls`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The federation.
    pub federation: FederationId,
    /// The server in it.
    pub member: MemberId,
    /// Its name.
    pub name: ServerId,
    /// From when on the certificate is valid.
    pub begins: Timestamp,
    /// Until when, inclusive.
    pub ends: Timestamp,
}

impl Peer {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Error::Certificate`] for one that no authority of a federation makes.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Peer> {
        let other = |what: &str| Error::Certificate(format!("this is no certificate of a server: {what}"));
        let (rest, parsed) = X509Certificate::from_der(certificate).map_err(|_| other("it cannot be parsed"))?;
        if !rest.is_empty() {
            return Err(other("something follows it"));
        }
        let names = parsed.subject_alternative_name().map_err(|_| other("its names cannot be parsed"))?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let [GeneralName::DNSName(dns)] = names else { return Err(other("it has not one DNS name")) };
        let parts: Vec<&str> = dns.split('.').collect();
        let [member, federation, SUFFIX] = parts[..] else {
            return Err(other("its DNS name is not of the form server.federation.ecotone"));
        };
        let mut common_names = parsed.subject().iter_common_name().map(|name| name.as_str());
        let (Some(Ok(name)), None) = (common_names.next(), common_names.next()) else {
            return Err(other("it has not one common name"));
        };
        let time = |time: i64| Timestamp(u64::try_from(time).unwrap_or(0));
        Ok(Peer {
            federation: federation.parse()?,
            member: member.parse()?,
            name: ServerId::new(name).map_err(|error| other(&error.to_string()))?,
            begins: time(parsed.validity().not_before.timestamp()),
            ends: time(parsed.validity().not_after.timestamp()),
        })
    }
}
