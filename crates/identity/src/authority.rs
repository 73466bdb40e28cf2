//! The federation's certificate authority: its key and its certificate, and what they sign.
//!
//! It records nothing: who belongs to the federation and which tokens are spent is in the
//! federation's log. It lies there too, sealed ([`crate::seal`]).

use std::fmt;

use ecotone_types::ServerId;
use rcgen::{Issuer, KeyPair};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use rustls::pki_types::CertificateDer;

use crate::certificates::{self, CERTIFICATE_TAG, Issued, KEY_TAG, Requested};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::names::{FederationId, MemberId, check_name};
use crate::seal::SealKey;
use crate::token::{JoinToken, TOKEN_LIFETIME_S, TokenClaim, fingerprint};

/// What the key of tokens is derived for.
const TOKEN_KEY: &[u8] = b"ecotone join tokens, 1";

/// A federation's authority.
pub struct Authority {
    federation: FederationId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    tokens: hmac::Key,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("federation", &self.federation).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes an authority of `federation`. It is kept nowhere yet.
    ///
    /// # Errors
    /// [`Error::Crypto`]; [`Error::Usage`] for a clock that no certificate can say.
    pub fn create(federation: FederationId, now: Timestamp) -> Result<Authority> {
        let key = certificates::new_key()?;
        let certificate = certificates::authority(federation, &key, now)?;
        Authority::of(federation, key, certificate)
    }

    fn of(federation: FederationId, key: KeyPair, certificate: CertificateDer<'static>) -> Result<Authority> {
        let tokens = token_key(&key)?;
        let issuer = certificates::issuer(&certificate, key)?;
        Ok(Authority { federation, issuer, certificate, tokens })
    }

    /// Key and certificate, sealed: at most [`MAX_SEALED_BYTES`](crate::seal::MAX_SEALED_BYTES),
    /// other ones each time.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn seal(&self, key: &SealKey) -> Result<Vec<u8>> {
        let pem = pem::encode_many(&[
            pem::Pem::new(KEY_TAG, self.issuer.key().serialized_der()),
            pem::Pem::new(CERTIFICATE_TAG, self.certificate.to_vec()),
        ]);
        key.seal(self.federation, pem.as_bytes())
    }

    /// The authority of `federation`, that [`seal`](Self::seal) has sealed.
    ///
    /// # Errors
    /// [`Error::Sealed`] if it was sealed with another key or for another federation, or is damaged.
    pub fn open(sealed: &[u8], key: &SealKey, federation: FederationId) -> Result<Authority> {
        let no_authority = |_| Error::Sealed("what is in it is no authority");
        let parts =
            pem::parse_many(key.open(federation, sealed)?).map_err(|_| Error::Sealed("what is in it is no PEM"))?;
        let [key, certificate] = &parts[..] else {
            return Err(Error::Sealed("it has not a key and a certificate"));
        };
        let key = certificates::key_from_der(key.contents()).map_err(no_authority)?;
        let certificate = CertificateDer::from(certificate.contents().to_vec());
        if federation_of(&certificate) != Some(federation) {
            return Err(Error::Sealed("its certificate is of another federation"));
        }
        Authority::of(federation, key, certificate).map_err(no_authority)
    }

    /// The federation.
    pub fn federation(&self) -> FederationId {
        self.federation
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A new token, good from now on for [`TOKEN_LIFETIME_S`]. Nothing is recorded: it carries its
    /// own proof, and whoever spends it first is recorded.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn issue_token(&self, now: Timestamp) -> Result<JoinToken> {
        JoinToken::issue(&self.tokens, now.plus(TOKEN_LIFETIME_S), fingerprint(&self.certificate)?)
    }

    /// Checks the secret of a token. Whether it is spent, the federation's log says.
    ///
    /// # Errors
    /// [`Error::Refused`] if this authority has not issued it, or its hour is over.
    pub fn check_token(&self, secret: &[u8], now: Timestamp) -> Result<TokenClaim> {
        Ok(TokenClaim::check(&self.tokens, secret, now)?)
    }

    /// A certificate for the server of this number and name, for the key of `request`: its first one,
    /// or the next one. Whether it may have it, the federation's log says.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is too long; [`Error::Certificate`] for a request that is
    /// none.
    pub fn issue(&self, member: MemberId, name: &ServerId, request: &[u8], now: Timestamp) -> Result<Issued> {
        check_name(name)?;
        let requested = Requested::read(request)?;
        let certificate = certificates::server(&self.issuer, self.federation, member, name, requested, now)?;
        Ok(Issued { certificate, authority: self.certificate.clone() })
    }

    /// Gives the server of this folder its next certificate: that needs no other server, which may be
    /// as good as gone while this one's certificate has ended.
    ///
    /// # Errors
    /// As [`Identity::end_renewal`].
    pub fn renew(&self, identity: &Identity) -> Result<()> {
        let (renewal, own) = (identity.begin_renewal()?, identity.own());
        let issued = self.issue(own.member, &own.name, &renewal.request, identity.now())?;
        identity.end_renewal(&renewal, &issued)
    }
}

/// The key that tokens are authenticated with: known to who knows the authority's.
fn token_key(authority: &KeyPair) -> Result<hmac::Key> {
    let secret = Salt::new(HKDF_SHA256, &[]).extract(authority.serialized_der());
    let derived = secret.expand(&[TOKEN_KEY], hmac::HMAC_SHA256);
    Ok(derived.map_err(|_| Error::crypto("derive the key of tokens", "the library refuses"))?.into())
}

/// The federation whose authority this is.
fn federation_of(certificate: &CertificateDer<'_>) -> Option<FederationId> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    name.strip_prefix("ecotone federation ")?.parse().ok()
}
