//! The identity of this server: its key, its certificate and the authority's, in the file
//! `server.pem`, and who is still in the federation.
//!
//! One file holds key and certificates, so that they always belong together. It is replaced while
//! the server runs; new connections use what is there then, open ones go on.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rcgen::KeyPair;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;

use crate::certificates::{self, CERTIFICATE_TAG, Issued, KEY_TAG};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::files;
use crate::names::{MemberId, Peer, federation_dns_name};
use crate::renewal;

/// Key and certificate that are in use.
pub(crate) struct Current {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) own: Peer,
}

/// What checks certificates of the federation's authority.
pub(crate) struct Verifiers {
    pub(crate) of_servers: Arc<dyn ServerCertVerifier>,
    pub(crate) of_clients: Arc<dyn ClientCertVerifier>,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl Verifiers {
    /// For certificates that `authority` has signed, and no others.
    pub(crate) fn new(authority: &CertificateDer<'static>) -> Result<Verifiers> {
        let refused = |error: &dyn fmt::Display| Error::crypto("take the authority's certificate", error);
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|error| refused(&error))?;
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let of_servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| refused(&error))?;
        let of_clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| refused(&error))?;
        Ok(Verifiers { of_servers, of_clients, provider })
    }

    /// Key and certificate, once it is known that they belong together.
    pub(crate) fn current(&self, key: &[u8], issued: &Issued) -> Result<Current> {
        let own = Peer::of(&issued.certificate)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
        let chain = vec![issued.certificate.clone(), issued.authority.clone()];
        let key = CertifiedKey::from_der(chain, key, &self.provider)
            .map_err(|error| Error::Certificate(format!("key and certificate do not belong together: {error}")))?;
        Ok(Current { key: Arc::new(key), own })
    }
}

/// Which servers the federation has, as far as this one knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Members {
    /// The number that the next one gets: above it are those that joined later.
    next: u64,
    /// The numbers below it of those that were not removed.
    present: BTreeSet<u64>,
}

impl Members {
    fn is_removed(&self, member: MemberId) -> bool {
        member.number() < self.next && !self.present.contains(&member.number())
    }
}

/// The identity of this server.
pub struct Identity {
    folder: PathBuf,
    authority: CertificateDer<'static>,
    pub(crate) verifiers: Verifiers,
    pub(crate) clock: Arc<dyn Clock>,
    current: RwLock<Arc<Current>>,
    members: RwLock<Members>,
    last_failure: Mutex<Option<Timestamp>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("own", &self.own()).finish_non_exhaustive()
    }
}

impl Identity {
    /// The file of a server's identity in its folder.
    pub const FILE: &str = "server.pem";

    /// The identity in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`]; those of files.
    pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Option<Identity>> {
        let file = folder.join(Identity::FILE);
        let Some(text) = files::read(&file)? else { return Ok(None) };
        let damaged = |what: &str| Error::damaged(&file, what);
        let parts = pem::parse_many(&text).map_err(|error| damaged(&error.to_string()))?;
        let [key, certificate, authority] = &parts[..] else {
            return Err(damaged("it has not a key, a certificate and the authority's certificate"));
        };
        let issued = Issued {
            certificate: CertificateDer::from(certificate.contents().to_vec()),
            authority: CertificateDer::from(authority.contents().to_vec()),
        };
        let verifiers = Verifiers::new(&issued.authority).map_err(|error| damaged(&error.to_string()))?;
        let current = verifiers.current(key.contents(), &issued).map_err(|error| damaged(&error.to_string()))?;
        Ok(Some(Identity {
            folder: folder.to_owned(),
            authority: issued.authority,
            verifiers,
            clock,
            current: RwLock::new(Arc::new(current)),
            members: RwLock::default(),
            last_failure: Mutex::new(None),
        }))
    }

    /// Writes an identity; what was there before is replaced.
    pub(crate) fn store(folder: &Path, key: &KeyPair, issued: &Issued) -> Result<()> {
        let pem = pem::encode_many(&[
            pem::Pem::new(KEY_TAG, key.serialize_der()),
            pem::Pem::new(CERTIFICATE_TAG, issued.certificate.to_vec()),
            pem::Pem::new(CERTIFICATE_TAG, issued.authority.to_vec()),
        ]);
        files::write(&folder.join(Identity::FILE), pem.as_bytes())
    }

    /// What this server's certificate says.
    pub fn own(&self) -> Peer {
        self.current.read().own.clone()
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        self.current.read().clone()
    }

    /// The authority's certificate.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The clock that this identity goes by.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// The time by the clock of this identity.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether this server was removed from the federation, whatever it shows. One that this server
    /// has not heard of joined later, as its number says.
    pub fn is_removed(&self, member: MemberId) -> bool {
        self.members.read().is_removed(member)
    }

    /// These servers are present, of those with numbers below `next`, which is given next: all others
    /// below it are refused from now on. Returns whether that is news; then open connections of
    /// removed servers are to be cut. Numbers only rise: who knows of fewer than this identity was
    /// told of before is behind, and changes nothing.
    pub fn set_members(&self, next: u64, present: BTreeSet<u64>) -> bool {
        let mut members = self.members.write();
        let told = Members { next, present };
        if next < members.next || *members == told {
            return false;
        }
        *members = told;
        true
    }

    /// Whether a connection of this peer may go on: it was not removed, and its certificate has not
    /// ended.
    pub fn may_stay(&self, peer: &Peer, now: Timestamp) -> bool {
        now <= peer.ends && !self.is_removed(peer.member)
    }

    /// Whether this server's certificate is valid now: if not, nobody speaks with it.
    pub fn is_valid_now(&self) -> bool {
        let (own, now) = (self.own(), self.clock.now());
        own.begins <= now && now <= own.ends
    }

    /// Whether the certificate is to be renewed now.
    pub fn renewal_is_due(&self) -> bool {
        let own = self.own();
        renewal::is_due(own.begins, own.ends, *self.last_failure.lock(), self.clock.now())
    }

    /// A renewal has failed: the next attempt is due a little later.
    pub fn renewal_failed(&self) {
        *self.last_failure.lock() = Some(self.clock.now());
    }

    /// A new key and the request for its certificate.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn begin_renewal(&self) -> Result<Renewal> {
        let key = certificates::new_key()?;
        let request = certificates::request(&key)?;
        Ok(Renewal { key, request })
    }

    /// Takes the answer: it is stored, and used by connections from now on.
    ///
    /// # Errors
    /// [`Error::Certificate`] if it is not a certificate of this server for the key of `renewal`;
    /// those of files. Then the former one stays in use.
    pub fn end_renewal(&self, renewal: &Renewal, issued: &Issued) -> Result<()> {
        if issued.authority != self.authority {
            return Err(Error::Certificate("the new certificate is of another authority".into()));
        }
        let next = self.verifiers.current(&renewal.key.serialize_der(), issued)?;
        check_chain(&self.verifiers, issued, self.clock.now())?;
        let own = self.own();
        if (next.own.federation, next.own.member, &next.own.name) != (own.federation, own.member, &own.name) {
            return Err(Error::Certificate(format!("the new certificate is of another server: {}", next.own.name)));
        }
        Identity::store(&self.folder, &renewal.key, issued)?;
        *self.current.write() = Arc::new(next);
        *self.last_failure.lock() = None;
        Ok(())
    }
}

/// A key without its certificate yet.
pub struct Renewal {
    key: KeyPair,
    /// What is sent to the authority.
    pub request: Vec<u8>,
}

/// Checks that the authority has signed the certificate, and that it is valid.
pub(crate) fn check_chain(verifiers: &Verifiers, issued: &Issued, now: Timestamp) -> Result<()> {
    verifiers
        .of_clients
        .verify_client_cert(&issued.certificate, &[], unix_time(now))
        .map(|_| ())
        .map_err(|error| Error::Certificate(format!("the certificate that was sent is not good: {error}")))
}

pub(crate) fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.0))
}

impl Identity {
    /// The name that TLS is given for a server of this federation.
    pub(crate) fn tls_name(&self) -> String {
        federation_dns_name(self.own().federation)
    }
}
