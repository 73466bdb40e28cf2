//! Certificates that tests make for themselves.

#![allow(dead_code)] // each test file uses its part

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Who signs certificates.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Issued {
    pub certificate: String,
    /// The certificate in DER.
    pub der: Vec<u8>,
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

    /// One for the server that is over `days` days from now and at most one more; before now where
    /// they are negative.
    pub fn server_until(&self, days: i64) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ServerAuth, |params| {
            let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 / 86_400;
            let at = |day: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(day as u64 * 86_400);
            // The end of that day, so that it does not matter when today it is.
            (params.not_before, params.not_after) = (at(today - 100), at(today + days + 1));
        })
    }

    fn issue(&self, usage: ExtendedKeyUsagePurpose, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = named("tests");
        params.extended_key_usages.push(usage);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { der: certificate.der().to_vec(), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A certificate that nobody but itself vouches for.
pub fn self_signed() -> Issued {
    let key = KeyPair::generate().unwrap();
    let certificate = named("itself").self_signed(&key).unwrap();
    Issued { der: certificate.der().to_vec(), certificate: certificate.pem(), key: key.serialize_pem() }
}

impl Issued {
    /// The same as of version 1 of X.509. Nobody has signed that, but none gets so far.
    pub fn of_version_1(self) -> Issued {
        let mut der = self.der;
        // The tag of the version, its length, and 2 for version 3.
        const VERSION_3: [u8; 5] = [0xa0, 3, 2, 1, 2];
        let at = der.windows(VERSION_3.len()).position(|bytes| bytes == VERSION_3).unwrap();
        der[at + 4] = 0;
        Issued { certificate: pem(&der), der, key: self.key }
    }

    /// Writes both into `folder`, whole and each at once: the paths of certificate and key.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
        replace(&key, &self.key);
        replace(&certificate, &self.certificate);
        (certificate, key)
    }
}

/// A certificate in PEM.
fn pem(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in der.chunks(3) {
        let bits = group.iter().chain([&0, &0]).take(3).fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let digits = [18, 12, 6, 0].map(|shift| char::from(DIGITS[bits >> shift & 63]));
        text.extend(digits.iter().take(group.len() + 1));
        text.extend(std::iter::repeat_n('=', 3 - group.len()));
    }
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Puts a file in the place of `path`, which nobody else may read.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
