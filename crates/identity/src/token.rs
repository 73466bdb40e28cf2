//! Join tokens: what lets one server into a federation, once, within an hour.
//!
//! A token is a secret and the fingerprint of the authority. By the fingerprint the new server
//! knows the federation before it says anything, by the secret the federation the new server. The
//! federation keeps only a hash of the secret.

use std::fmt;
use std::str::FromStr;

use ring::digest;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use subtle::ConstantTimeEq;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::{Error, Result};
use crate::names::{from_hex, random, to_hex};

/// Seconds that a token is good for.
pub const TOKEN_LIFETIME_S: u64 = 3600;
/// Bytes of the secret: too many to guess.
const SECRET_BYTES: usize = 16;
/// How a token begins: says what it is, and of which form.
const PREFIX: &str = "eco1";

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hash([u8; digest::SHA256_OUTPUT_LEN]);

impl Hash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Hash {
        let mut hash = [0; digest::SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
        Hash(hash)
    }

    /// Whether they are equal, in a time that does not depend on where they differ.
    pub fn is(&self, other: &Hash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        from_hex(&String::deserialize(deserializer)?)
            .map(Hash)
            .ok_or_else(|| serde::de::Error::custom("not 64 hexadecimal digits"))
    }
}

/// The fingerprint of an authority: the hash of its public key.
///
/// # Errors
/// [`Error::Certificate`] for what is no certificate.
pub fn fingerprint(authority: &CertificateDer<'_>) -> Result<Hash> {
    let (_, parsed) = X509Certificate::from_der(authority)
        .map_err(|_| Error::Certificate("the authority's certificate cannot be parsed".into()))?;
    Ok(Hash::of(parsed.public_key().raw))
}

/// A join token. Shown once, to whoever asked for it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    secret: [u8; SECRET_BYTES],
    authority: Hash,
}

impl JoinToken {
    /// A new token of the authority with this fingerprint.
    pub(crate) fn draw(authority: Hash) -> Result<JoinToken> {
        Ok(JoinToken { secret: random()?, authority })
    }

    /// What is shown to the federation, once it has shown that it is the right one.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// The fingerprint of the federation's authority.
    pub fn authority(&self) -> &Hash {
        &self.authority
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{}-{}", to_hex(&self.secret), to_hex(&self.authority.0))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A token in a log would be a token given away.
        f.write_str("JoinToken(..)")
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<JoinToken> {
        let mut parts = text.trim().split('-');
        let (prefix, secret, authority, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
        let read = || {
            let (secret, authority) = (from_hex(secret?)?, from_hex(authority?).map(Hash)?);
            (prefix == Some(PREFIX) && rest.is_none()).then_some(JoinToken { secret, authority })
        };
        read().ok_or_else(|| {
            // The text itself may be most of a secret.
            Error::Usage(format!(
                "this is no join token: one begins with {PREFIX}- and is what `ecotone cluster token` prints, whole"
            ))
        })
    }
}
