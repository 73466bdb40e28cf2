//! Whom a client trusts by TLS, and who it is.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::ServerAddress;

/// Far beyond every chain of certificates and every list of authorities.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Whom a client trusts, and who it is.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl Tls {
    /// Trusts servers whose certificates one of the authorities in `ca` has signed, and shows the
    /// certificate in the first file of `own`, whose key is in the second. All of them are PEM.
    ///
    /// # Errors
    ///
    /// The first file that cannot be used.
    pub fn new(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Self, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in certificates(ca)? {
            authorities.add(certificate).map_err(|error| refuse(ca, error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| refuse(ca, error))?
            .with_root_certificates(authorities);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let own = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| refuse(key, error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, own)
                    .map_err(|error| refuse(certificate, error))?
            }
        };
        Ok(Self { config: Arc::new(config) })
    }

    /// Passes the handshake, within the time-outs of `stream`.
    pub(super) fn handshake(
        &self,
        address: &ServerAddress,
        mut stream: TcpStream,
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let ServerAddress::Tcp(text) = address else { return Err(ErrorKind::Unsupported.into()) };
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| Error::new(ErrorKind::InvalidInput, error))?;
        let mut connection = ClientConnection::new(self.config.clone(), name).map_err(Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

fn refuse(path: &Path, reason: impl ToString) -> TlsError {
    TlsError { path: path.to_path_buf(), reason: reason.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| refuse(path, format!("it is no PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(refuse(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| refuse(path, error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(refuse(path, format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
