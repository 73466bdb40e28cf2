//! The federation's certificate authority: who may join, and certificates for those who did.
//!
//! It lies in a folder, `identity/` of the server that keeps it: `authority.pem` (key and
//! certificate), `ledger.json` (tokens and servers, see [`crate::ledger`]), `lock`.

use std::path::Path;
use std::sync::Arc;

use ecotone_types::ServerId;
use rcgen::{Issuer, KeyPair};
use rustls::pki_types::CertificateDer;

use crate::certificates::{self, Issued, Requested};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files;
use crate::identity::{CERTIFICATE_TAG, Identity, KEY_TAG};
use crate::ledger::{Entry, FileLedger, LEDGER_FILE, Ledger, LedgerState};
use crate::names::{FederationId, MemberId, check_name};
use crate::refusal::Refusal;
use crate::token::{Hash, JoinToken, TOKEN_LIFETIME_S, fingerprint};

/// The file with key and certificate.
const FILE: &str = "authority.pem";

/// A federation's authority.
pub struct Authority {
    federation: FederationId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    ledger: Arc<dyn Ledger>,
}

impl Authority {
    /// Makes a federation in `folder`: its authority, and the first server's identity.
    ///
    /// # Errors
    /// [`Error::Usage`] if an identity is there already; those of files.
    pub fn create(folder: &Path, name: &ServerId, now: Timestamp) -> Result<Authority> {
        check_name(name)?;
        files::make_folder(folder)?;
        let _lock = files::lock(&folder.join("creation-lock"))?;
        let (authority_file, identity) = (folder.join(FILE), folder.join(Identity::FILE));
        let record = folder.join(LEDGER_FILE);
        // A record without authority is what an interrupted creation leaves: nothing was made then.
        let there = [&authority_file, &identity].into_iter().find(|file| file.exists());
        if let Some(there) = there.filter(|_| authority_file.exists() || !record.exists()) {
            return Err(Error::Usage(format!(
                "{} is there: this folder belongs to a federation already; to make another one choose another --dir, or remove the \
                 folder of the old identity",
                there.display()
            )));
        }
        let federation = FederationId::draw()?;
        let key = certificates::new_key()?;
        let certificate = certificates::authority(federation, &key, now)?;
        let pem = pem::encode_many(&[
            pem::Pem::new(KEY_TAG, key.serialize_der()),
            pem::Pem::new(CERTIFICATE_TAG, certificate.to_vec()),
        ]);
        let issuer = certificates::issuer(&certificate, key)?;
        let authority = Authority { federation, issuer, certificate, ledger: Arc::new(FileLedger::new(folder)) };
        let server_key = certificates::new_key()?;
        let requested = Requested::read(&certificates::request(&server_key)?)?;
        let member = MemberId::draw()?;
        let issued = authority.sign(member, name, requested, now)?;
        files::remove(&record)?;
        let founded = Entry::Founded { member, name: name.clone(), ends: certificates::ends(now), now };
        authority.ledger.apply(founded)?;
        Identity::store(folder, &server_key, &issued)?;
        files::write(&authority_file, pem.as_bytes())?;
        Ok(authority)
    }

    /// The authority in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`]; those of files.
    pub fn open(folder: &Path) -> Result<Option<Authority>> {
        let ledger = Arc::new(FileLedger::new(folder));
        Authority::with_ledger(folder, ledger)
    }

    /// As [`open`](Self::open), with tokens and servers recorded elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn with_ledger(folder: &Path, ledger: Arc<dyn Ledger>) -> Result<Option<Authority>> {
        let file = folder.join(FILE);
        let Some(text) = files::read(&file)? else { return Ok(None) };
        let damaged = |what: &str| Error::damaged(&file, what);
        let parts = pem::parse_many(&text).map_err(|error| damaged(&error.to_string()))?;
        let [key, certificate] = &parts[..] else { return Err(damaged("it has not a key and a certificate")) };
        let key = certificates::key_from_der(key.contents()).map_err(|error| damaged(&error.to_string()))?;
        let certificate = CertificateDer::from(certificate.contents().to_vec());
        let federation = federation_of(&certificate).ok_or_else(|| damaged("its certificate names no federation"))?;
        let issuer = certificates::issuer(&certificate, key).map_err(|error| damaged(&error.to_string()))?;
        Ok(Some(Authority { federation, issuer, certificate, ledger }))
    }

    /// The federation.
    pub fn federation(&self) -> FederationId {
        self.federation
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A new token, good once from now on, for [`TOKEN_LIFETIME_S`].
    ///
    /// # Errors
    /// Those of the ledger.
    pub fn issue_token(&self, now: Timestamp) -> Result<JoinToken> {
        let token = JoinToken::draw(fingerprint(&self.certificate)?)?;
        let hash = Hash::of(token.secret());
        self.ledger.apply(Entry::TokenIssued { token: hash, ends: now.plus(TOKEN_LIFETIME_S), now })?;
        Ok(token)
    }

    /// Lets a server in that shows the secret of a token: its first certificate.
    ///
    /// # Errors
    /// [`Error::Refused`] as the ledger says; [`Error::Certificate`] for a request that is none.
    pub fn join(&self, secret: &[u8], name: &ServerId, request: &[u8], now: Timestamp) -> Result<Issued> {
        check_name(name)?;
        let requested = Requested::read(request)?;
        let entry = Entry::Joined {
            token: Hash::of(secret),
            key: requested.key(),
            member: MemberId::draw()?,
            name: name.clone(),
            ends: certificates::ends(now),
            now,
        };
        let member = self.ledger.apply(entry)?.ok_or_else(|| Error::crypto("join", "the ledger names no server"))?;
        self.sign(member, name, requested, now)
    }

    /// The next certificate of a server of the federation.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn renew(&self, member: MemberId, request: &[u8], now: Timestamp) -> Result<Issued> {
        let requested = Requested::read(request)?;
        self.ledger.apply(Entry::Renewed { member, ends: certificates::ends(now), now })?;
        // Its name never changes.
        let state = self.ledger.state()?;
        let server = state.servers().get(&member);
        let name = server.ok_or_else(|| Refusal::UnknownServer(member.to_string()))?;
        self.sign(member, &name.name, requested, now)
    }

    /// Takes the server of this name or id out of the federation.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none.
    pub fn remove(&self, name_or_id: &str, now: Timestamp) -> Result<MemberId> {
        let member = self.ledger.state()?.find(name_or_id)?;
        self.ledger.apply(Entry::Removed { member, now })?;
        Ok(member)
    }

    /// Tokens and servers.
    ///
    /// # Errors
    /// Those of the ledger.
    pub fn state(&self) -> Result<Arc<LedgerState>> {
        self.ledger.state()
    }

    fn sign(&self, member: MemberId, name: &ServerId, requested: Requested, now: Timestamp) -> Result<Issued> {
        let certificate = certificates::server(&self.issuer, self.federation, member, name, requested, now)?;
        Ok(Issued { certificate, authority: self.certificate.clone() })
    }
}

/// The federation whose authority this is.
fn federation_of(certificate: &CertificateDer<'_>) -> Option<FederationId> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    name.strip_prefix("ecotone federation ")?.parse().ok()
}
