//! Certificates that tests make for themselves.

#![allow(dead_code)] // each test file uses its part

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Who signs certificates.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub fn server(&self) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ServerAuth, |_| {})
    }

    pub fn client(&self) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ClientAuth, |_| {})
    }

    pub fn expired_client(&self) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        })
    }

    fn issue(&self, usage: ExtendedKeyUsagePurpose, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = named("tests");
        params.extended_key_usages.push(usage);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Issued { certificate: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// A certificate that nobody but itself vouches for.
pub fn self_signed() -> Issued {
    let key = KeyPair::generate().unwrap();
    Issued { certificate: named("itself").self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

impl Issued {
    /// Writes both into `folder`, whole and each at once: the paths of certificate and key.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
        replace(&key, &self.key);
        replace(&certificate, &self.certificate);
        (certificate, key)
    }
}

/// Puts a file in the place of `path`, which nobody else may read.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
