//! The server's identity by TLS: certificate and key, and the authorities of clients' certificates.
//!
//! Files are read again when they have changed, so that a certificate can be renewed without a
//! restart: new connections see the new one, others keep theirs. A file that cannot be used changes
//! nothing and is logged once. The coming or past expiry of a certificate is logged when it is read
//! and then once a day, and is [reported](CertificateEnds).
//!
//! Bounds: a file has at most [`MAX_FILE_BYTES`]; changes are looked for at most every
//! [`LOOKS_EVERY`], when a client connects, and at least every [`LOOKS_UNASKED_EVERY`]. Where
//! clients must have certificates no session is resumed: each handshake checks the certificate.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::certificate::{self, Certificate, CertificateEnds, Notice, Notices};

/// Far beyond every chain of certificates and every list of authorities.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Time between two checks of the files.
const LOOKS_EVERY: Duration = Duration::from_secs(2);

/// The same where no client connects.
pub(super) const LOOKS_UNASKED_EVERY: Duration = Duration::from_secs(30);

/// The only version that TLS libraries accept: earlier ones have no extensions, which state the use
/// of a certificate.
const VERSION_NEEDED: u8 = 3;

/// The library's message for a certificate of another version, which has no error type of its own.
const UNSUPPORTED_VERSION: &str = "UnsupportedCertVersion";

/// What to do about it.
const HOW_TO_MAKE_VERSION_3: &str = "X.509 version 3 is needed, which has extensions: issue it anew with one (openssl x509 -req -extfile FILE with subjectAltName in it)";

/// The files of the server's identity, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate, and those between it and the authority, if there are any.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Authorities; a client must have a certificate that one of them has signed. `None`: clients
    /// need none.
    pub client_ca: Option<PathBuf>,
}

/// One of [`TlsFiles`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificate.
    Certificate,
    /// Its key.
    Key,
    /// The authorities of clients.
    ClientCa,
}

/// A file cannot be used: replace it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    /// Which of them.
    pub file: TlsFile,
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl TlsFiles {
    /// Checks whether they can be used.
    ///
    /// # Errors
    ///
    /// The first that cannot.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<Loaded, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let refuse = |file, reason: String| self.refuse(file, reason);
        let chain = self.certificates(TlsFile::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.read(TlsFile::Key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                refuse(TlsFile::Key, "there is no private key in it (one that is encrypted does not count)".into())
            }
            error => refuse(TlsFile::Key, format!("it is no PEM: {error}")),
        })?;
        let key = provider
            .key_provider
            .load_private_key(key)
            .map_err(|error| refuse(TlsFile::Key, format!("its key cannot be used: {error}")))?;
        if let Some(version) = chain.first().and_then(|own| certificate::read(own)).map(|own| own.version)
            && version != VERSION_NEEDED
        {
            let why = format!("its certificate is of X.509 version {version}; {HOW_TO_MAKE_VERSION_3}");
            return Err(refuse(TlsFile::Certificate, why));
        }
        let own = first_to_end(&chain);
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // Some keys cannot be checked here; handshakes will fail.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                let why = format!("its key does not belong to the certificate in {}", self.certificate.display());
                return Err(refuse(TlsFile::Key, why));
            }
            Err(error) => {
                return Err(refuse(TlsFile::Certificate, format!("its certificate cannot be used: {error}")));
            }
        }
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refuse(TlsFile::Certificate, error.to_string()))?;
        let resolver = Arc::new(SingleCertAndKey::from(certified));
        if self.client_ca.is_none() {
            let config = builder.with_no_client_auth().with_cert_resolver(resolver);
            return Ok(Loaded { config, certificate: own, client_ca: None });
        }
        let authorities = self.certificates(TlsFile::ClientCa)?;
        let client_ca = first_to_end(&authorities);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots(authorities)?), provider)
            .build()
            .map_err(|error| refuse(TlsFile::ClientCa, error.to_string()))?;
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Loaded { config, certificate: own, client_ca })
    }

    fn roots(&self, authorities: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in authorities {
            roots.add(certificate).map_err(|error| {
                let why = with_version(&error).unwrap_or_else(|| error.to_string());
                self.refuse(TlsFile::ClientCa, format!("a certificate in it cannot be used: {why}"))
            })?;
        }
        Ok(roots)
    }

    fn certificates(&self, file: TlsFile) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read(file)?;
        let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(|error| self.refuse(file, format!("it is no PEM: {error}")))?;
        if certificates.is_empty() {
            return Err(self.refuse(file, "there is no certificate in it".into()));
        }
        Ok(certificates)
    }

    fn read(&self, file: TlsFile) -> Result<Vec<u8>, TlsError> {
        let mut bytes = Vec::new();
        let read = File::open(self.path(file)).and_then(|from| from.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|error| self.refuse(file, format!("it cannot be read: {error}")))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(self.refuse(file, format!("it is longer than {MAX_FILE_BYTES} bytes")));
        }
        Ok(bytes)
    }

    fn path(&self, file: TlsFile) -> &Path {
        match file {
            TlsFile::Certificate => &self.certificate,
            TlsFile::Key => &self.key,
            // Nobody asks for one that is not there.
            TlsFile::ClientCa => self.client_ca.as_deref().unwrap_or(Path::new("")),
        }
    }

    fn refuse(&self, file: TlsFile, reason: String) -> TlsError {
        TlsError { file, path: self.path(file).to_path_buf(), reason }
    }

    fn stamps(&self) -> [Option<Stamp>; 3] {
        [Some(self.certificate.as_path()), Some(self.key.as_path()), self.client_ca.as_deref()]
            .map(|path| Stamp::of(path?))
    }

    fn warn_if_others_read_the_key(&self) {
        let mode = std::fs::metadata(&self.key).map_or(0, |found| found.mode());
        if mode & 0o077 != 0 {
            tracing::warn!(
                key = %self.key.display(), mode = format!("{:o}", mode & 0o777),
                "the private key can be read by others than its owner: chmod 600"
            );
        }
    }
}

/// The contents of the files.
struct Loaded {
    config: ServerConfig,
    /// The first to expire of the server's own and those between it and its authority.
    certificate: Option<Certificate>,
    /// The first to expire of the authorities of clients.
    client_ca: Option<Certificate>,
}

fn first_to_end(certificates: &[CertificateDer<'_>]) -> Option<Certificate> {
    let read = certificates.iter().filter_map(|certificate| certificate::read(certificate));
    read.min_by_key(|certificate| certificate.end.unix_s)
}

/// The text for an error about a certificate of an unsupported version; `None` for other errors.
pub(super) fn with_version(error: &dyn std::error::Error) -> Option<String> {
    let text = error.to_string();
    text.contains(UNSUPPORTED_VERSION).then(|| format!("{text}: {HOW_TO_MAKE_VERSION_3}"))
}

/// Identifies the contents of a file; changes when it is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    file: (u64, u64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { modified: found.modified().ok(), bytes: found.len(), file: (found.dev(), found.ino()) })
    }
}

/// The server's current identity.
pub(super) struct Identity {
    files: TlsFiles,
    acceptor: TlsAcceptor,
    /// Of the files as they were when they were last read, with or without success.
    stamps: [Option<Stamp>; 3],
    looked: Instant,
    certificate: (Option<Certificate>, Notices),
    client_ca: (Option<Certificate>, Notices),
    /// For monitoring.
    ends: Arc<CertificateEnds>,
}

impl Identity {
    /// Reports expiries of its certificates to `ends` from now on.
    pub(super) fn of(files: TlsFiles, ends: Arc<CertificateEnds>) -> Result<Self, TlsError> {
        // Before the files are read: a change meanwhile is noticed later.
        let stamps = files.stamps();
        let Loaded { config, certificate, client_ca } = files.load()?;
        let acceptor = Arc::new(config).into();
        files.warn_if_others_read_the_key();
        let (certificate, client_ca) = ((certificate, Notices::default()), (client_ca, Notices::default()));
        let mut identity = Self { files, acceptor, stamps, looked: Instant::now(), certificate, client_ca, ends };
        identity.tell_of_ends();
        Ok(identity)
    }

    /// The acceptor for a client that connects at `now`.
    pub(super) fn acceptor(&mut self, now: Instant) -> TlsAcceptor {
        self.look(now);
        self.acceptor.clone()
    }

    /// Checks whether the files have changed, or an expiry is to be logged.
    pub(super) fn look(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOKS_EVERY {
            return;
        }
        self.looked = now;
        let stamps = self.files.stamps();
        if stamps != self.stamps {
            self.stamps = stamps;
            self.renew();
        }
        self.tell_of_ends();
    }

    fn tell_of_ends(&mut self) {
        let end = |of: &(Option<Certificate>, Notices)| of.0.as_ref().map(|of| of.end.clone());
        self.ends.set(end(&self.certificate).as_ref(), end(&self.client_ca).as_ref());
        // A clock before 1970 is before all certificates.
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let file = self.files.certificate.display();
        if let (Some(certificate), notices) = &mut self.certificate
            && let Some(notice) = notices.due(certificate, now_s)
        {
            let Certificate { begin, end, .. } = certificate;
            match notice {
                Notice::NotYet => {
                    tracing::warn!(certificate = %file, from = begin.text, "the TLS certificate does not hold yet: clients will refuse it");
                }
                Notice::Ends { in_days } => tracing::warn!(
                    certificate = %file, until = end.text, in_days,
                    "the TLS certificate will soon be over: renew it, it is read anew without a restart"
                ),
                Notice::Ended => tracing::warn!(
                    certificate = %file, until = end.text,
                    "the TLS certificate is over: clients refuse it; renew it, it is read anew without a restart"
                ),
            }
        }
        let file = self.files.client_ca.as_deref().unwrap_or(Path::new("")).display();
        if let (Some(authority), notices) = &mut self.client_ca
            && let Some(notice) = notices.due(authority, now_s)
        {
            let Certificate { begin, end, .. } = authority;
            match notice {
                Notice::NotYet => {
                    tracing::warn!(client_ca = %file, from = begin.text, "the certificate of an authority of clients does not hold yet");
                }
                Notice::Ends { in_days } => tracing::warn!(
                    client_ca = %file, until = end.text, in_days, "the certificate of an authority of clients will soon be over: put a new one beside it"
                ),
                Notice::Ended => tracing::warn!(
                    client_ca = %file, until = end.text,
                    "the certificate of an authority of clients is over; what it has signed is taken all the same: take it out of the file if it no \
                     longer counts"
                ),
            }
        }
    }

    fn renew(&mut self) {
        match self.files.load() {
            Ok(Loaded { config, certificate, client_ca }) => {
                self.acceptor = Arc::new(config).into();
                self.certificate = (certificate, Notices::default());
                self.client_ca = (client_ca, Notices::default());
                self.files.warn_if_others_read_the_key();
                tracing::info!(certificate = %self.files.certificate.display(), "the TLS certificate was read anew");
            }
            Err(error) => {
                tracing::warn!(%error, "a changed TLS file cannot be used; what was read before stays in use");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn a_client_with_a_certificate_of_version_1_is_told_of_as_such() {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(Vec::new()).unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let mut old = authority.der().to_vec();
        let at = old.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap();
        old[at + 4] = 0;
        let now = rustls::pki_types::UnixTime::now();
        let error = verifier.verify_client_cert(&old.into(), &[], now).unwrap_err();
        // As a handshake reports it.
        let told = with_version(&std::io::Error::other(error)).unwrap();
        assert!(told.contains("X.509 version 3 is needed"), "{told}");
        assert_eq!(with_version(&std::io::Error::other("something else")), None);
    }
}
