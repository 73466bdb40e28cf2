//! Who the server is, by TLS: certificate and key, and whose certificates clients must show.
//!
//! Files are read again when they have changed, so that a certificate can be renewed without a restart: connections that come
//! from then on see the new one, others keep theirs. What cannot be used changes nothing and is told once.
//!
//! Bounds: a file has at most [`MOST_FILE_BYTES`]; changes are looked for at most every [`LOOKS_EVERY`], when a client comes. Where clients show
//! certificates no session is resumed: each time the certificate is looked at anew.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Far beyond every chain of certificates and every list of authorities.
const MOST_FILE_BYTES: u64 = 4 << 20;

/// Time between two looks at the files.
const LOOKS_EVERY: Duration = Duration::from_secs(2);

/// The files that say who the server is, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate, and those between it and the authority, if there are any.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Authorities; a client must show a certificate that one of them has signed. None: clients show none.
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

/// A file cannot be used: put another in its place.
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
    /// Looks whether they can be used.
    ///
    /// # Errors
    ///
    /// The first that cannot.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
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
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // Of some keys it cannot be told; clients will.
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
            return Ok(builder.with_no_client_auth().with_cert_resolver(resolver));
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.authorities()?), provider)
            .build()
            .map_err(|error| refuse(TlsFile::ClientCa, error.to_string()))?;
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in self.certificates(TlsFile::ClientCa)? {
            authorities.add(certificate).map_err(|error| {
                self.refuse(TlsFile::ClientCa, format!("a certificate in it cannot be used: {error}"))
            })?;
        }
        Ok(authorities)
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
        let read = File::open(self.path(file)).and_then(|from| from.take(MOST_FILE_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|error| self.refuse(file, format!("it cannot be read: {error}")))?;
        if bytes.len() as u64 > MOST_FILE_BYTES {
            return Err(self.refuse(file, format!("it is longer than {MOST_FILE_BYTES} bytes")));
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

/// What a file is known by; another one when it is written or replaced.
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

/// Who the server is now.
pub(super) struct Identity {
    files: TlsFiles,
    acceptor: TlsAcceptor,
    /// Of the files as they were when they were last read, with or without success.
    stamps: [Option<Stamp>; 3],
    looked: Instant,
}

impl Identity {
    pub(super) fn of(files: TlsFiles) -> Result<Self, TlsError> {
        // Before the files are read: a change meanwhile is one.
        let stamps = files.stamps();
        let acceptor = Arc::new(files.load()?).into();
        files.warn_if_others_read_the_key();
        Ok(Self { files, acceptor, stamps, looked: Instant::now() })
    }

    /// What lets in a client that comes at `now`.
    pub(super) fn acceptor(&mut self, now: Instant) -> TlsAcceptor {
        if now.saturating_duration_since(self.looked) >= LOOKS_EVERY {
            self.looked = now;
            let stamps = self.files.stamps();
            if stamps != self.stamps {
                self.stamps = stamps;
                self.renew();
            }
        }
        self.acceptor.clone()
    }

    fn renew(&mut self) {
        match self.files.load() {
            Ok(config) => {
                self.acceptor = Arc::new(config).into();
                self.files.warn_if_others_read_the_key();
                tracing::info!(certificate = %self.files.certificate.display(), "the TLS certificate was read anew");
            }
            Err(error) => {
                tracing::warn!(%error, "a changed TLS file cannot be used; what was read before stays in use");
            }
        }
    }
}
