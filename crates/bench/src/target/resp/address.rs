//! Where a server listens, and the word it asks for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The scheme of a server's address over TCP.
const TCP: &str = "resp://";
/// The scheme of a server's socket on this machine.
const UNIX: &str = "unix://";

/// Where a server listens. Its text, also in JSON, is `resp://HOST:PORT` or `unix:///PATH`: never
/// with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ServerAddress {
    /// A host and a port.
    Tcp(String),
    /// A socket on this machine.
    Unix(PathBuf),
}

/// What a server asks for before it serves. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// A name, where the server knows several.
    pub user: Option<String>,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credentials")
    }
}

impl Credentials {
    /// A password alone.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }
}

impl ServerAddress {
    /// Whether a target is named as a server is.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(TCP) || text.starts_with(UNIX)
    }

    /// Reads `resp://HOST:PORT`, `resp://:PASSWORD@HOST:PORT`, `resp://USER:PASSWORD@HOST:PORT` or
    /// `unix:///PATH`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`], which does not repeat the password.
    pub fn parse(text: &str) -> Result<(Self, Option<Credentials>)> {
        let wrong = |what: &str| {
            Error::options(format!("a server is named {TCP}[[USER]:PASSWORD@]HOST:PORT or {UNIX}/PATH: {what}"))
        };
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path.starts_with('/') {
                true => Ok((Self::Unix(path.into()), None)),
                false => Err(wrong("the path must begin with /")),
            };
        }
        let rest = text.strip_prefix(TCP).ok_or_else(|| wrong("there is no such scheme"))?;
        // A password may hold an @, an address does not.
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((said, address)) => (Some(said), address),
            None => (None, rest),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
        if host.is_empty() || port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(wrong("the host or the port is none"));
        }
        let credentials = credentials.map(|said| match said.split_once(':') {
            Some(("", password)) => Ok(Credentials::password(password)),
            Some((user, password)) => Ok(Credentials { user: Some(user.to_owned()), password: password.to_owned() }),
            None => Err(wrong("the password has no : before it")),
        });
        Ok((Self::Tcp(address.to_owned()), credentials.transpose()?))
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{TCP}{address}"),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

impl From<ServerAddress> for String {
    fn from(address: ServerAddress) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for ServerAddress {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text).map(|(address, _)| address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_password() {
        for (text, shown, user, password) in [
            ("resp://127.0.0.1:6379", "resp://127.0.0.1:6379", None, None),
            ("resp://[::1]:6379/", "resp://[::1]:6379", None, None),
            ("resp://:s@cret:1@host:1", "resp://host:1", None, Some("s@cret:1")),
            ("resp://me:secret@host:1", "resp://host:1", Some("me"), Some("secret")),
            ("unix:///run/ecotone.sock", "unix:///run/ecotone.sock", None, None),
        ] {
            let (address, credentials) = ServerAddress::parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            let said = credentials.as_ref().map(|said| (said.user.as_deref(), said.password.as_str()));
            assert_eq!(said, password.map(|password| (user, password)), "{text}");
            assert_eq!(ServerAddress::parse(shown).unwrap(), (address, None));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_and_its_password_is_not_told() {
        for text in [
            "resp://",
            "resp://host",
            "resp://host:0",
            "resp://:1",
            "resp://secret@host:1",
            "unix://run/x",
            "http://h:1",
        ] {
            let refusal = ServerAddress::parse(text).unwrap_err().to_string();
            assert!(refusal.contains("resp://[[USER]:PASSWORD@]HOST:PORT") && !refusal.contains("secret"), "{refusal}");
        }
        assert!(!format!("{:?}", Credentials::password("secret")).contains("secret"));
    }
}
