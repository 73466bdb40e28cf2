//! Join tokens: what lets one server into a federation, once, within an hour.
//!
//! A token is a secret and the fingerprint of the authority. By the fingerprint the new server
//! knows the federation before it says anything, by the secret the federation the new server.
//! Nobody records tokens that are not spent: the secret carries its own proof.
//!
//! ```text
//! secret: id: random:8 ends:u64 (big-endian, seconds since 1970)   proof:16
//! ```
//!
//! The proof is the beginning of an HMAC-SHA256 of the id, by a key that is derived from the
//! authority's. The id is no secret: the federation's log names by it the tokens that are spent.

use std::fmt;
use std::str::FromStr;

use ring::{digest, hmac};
use rustls::pki_types::CertificateDer;
use subtle::ConstantTimeEq;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::names::{from_hex, random, to_hex};
use crate::refusal::Refusal;

/// Seconds that a token is good for.
pub const TOKEN_LIFETIME_S: u64 = 3600;
/// Bytes that make each token another one.
const RANDOM_BYTES: usize = 8;
/// Bytes of what a token is recorded by.
const ID_BYTES: usize = RANDOM_BYTES + 8;
/// Bytes of the proof: too many to guess.
const PROOF_BYTES: usize = 16;
/// Bytes of the secret.
const SECRET_BYTES: usize = ID_BYTES + PROOF_BYTES;
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

    pub(crate) fn bytes(&self) -> [u8; digest::SHA256_OUTPUT_LEN] {
        self.0
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

/// The fingerprint of an authority: the hash of its public key.
///
/// # Errors
/// [`Error::Certificate`] for what is no certificate.
pub fn fingerprint(authority: &CertificateDer<'_>) -> Result<Hash> {
    let (_, parsed) = X509Certificate::from_der(authority)
        .map_err(|_| Error::Certificate("the authority's certificate cannot be parsed".into()))?;
    Ok(Hash::of(parsed.public_key().raw))
}

/// What a token says that the authority has issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenClaim {
    /// By which it is recorded as spent.
    pub id: [u8; ID_BYTES],
    /// Until when it is good, exclusive.
    pub ends: Timestamp,
}

impl TokenClaim {
    /// What a secret says, once its proof is checked, in a time that does not depend on where it is
    /// wrong.
    pub(crate) fn check(key: &hmac::Key, secret: &[u8], now: Timestamp) -> std::result::Result<TokenClaim, Refusal> {
        let secret: &[u8; SECRET_BYTES] = secret.try_into().map_err(|_| Refusal::UnknownToken)?;
        let (id, proof) = secret.split_at(ID_BYTES);
        if !bool::from(proof_of(key, id).ct_eq(proof)) {
            return Err(Refusal::UnknownToken);
        }
        let (mut claimed, mut ends) = ([0; ID_BYTES], [0; 8]);
        claimed.copy_from_slice(id);
        ends.copy_from_slice(&id[RANDOM_BYTES..]);
        let ends = Timestamp(u64::from_be_bytes(ends));
        if now >= ends { Err(Refusal::ExpiredToken) } else { Ok(TokenClaim { id: claimed, ends }) }
    }
}

fn proof_of(key: &hmac::Key, id: &[u8]) -> [u8; PROOF_BYTES] {
    let whole = hmac::sign(key, id);
    let mut proof = [0; PROOF_BYTES];
    proof.copy_from_slice(&whole.as_ref()[..PROOF_BYTES]);
    proof
}

/// A join token. Shown once, to whoever asked for it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    secret: [u8; SECRET_BYTES],
    authority: Hash,
}

impl JoinToken {
    /// A new token of the authority with this fingerprint and this key of tokens.
    pub(crate) fn issue(key: &hmac::Key, ends: Timestamp, authority: Hash) -> Result<JoinToken> {
        let drawn: [u8; RANDOM_BYTES] = random()?;
        let mut secret = [0; SECRET_BYTES];
        let (id, proof) = secret.split_at_mut(ID_BYTES);
        id[..RANDOM_BYTES].copy_from_slice(&drawn);
        id[RANDOM_BYTES..].copy_from_slice(&ends.0.to_be_bytes());
        proof.copy_from_slice(&proof_of(key, id));
        Ok(JoinToken { secret, authority })
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
