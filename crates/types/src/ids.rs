//! Names of servers and jobs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of a server, unique in its federation. Cheap to clone; ordered by its bytes.
///
/// Invariant: 1 to [`ServerId::MAX_BYTES`] bytes, no control characters. A name from the wire is
/// checked when it is read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(Arc<str>);

impl ServerId {
    /// The longest name, in bytes: that of a DNS host name.
    pub const MAX_BYTES: usize = 255;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// When it is empty, too long or has control characters.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidServerName> {
        let name = name.as_ref();
        let problem = if name.is_empty() {
            "it is empty"
        } else if name.len() > Self::MAX_BYTES {
            "it is too long"
        } else if name.chars().any(char::is_control) {
            "it has control characters"
        } else {
            return Ok(Self(Arc::from(name)));
        };
        // The refused name goes to a log: only its beginning, escaped, so that it cannot flood or
        // forge one.
        let name = name.chars().take(32).flat_map(char::escape_debug).collect();
        Err(InvalidServerName { name, problem })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for ServerId {
    type Err = InvalidServerName;
    fn from_str(name: &str) -> Result<Self, InvalidServerName> {
        Self::new(name)
    }
}

impl AsRef<str> for ServerId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Serialize for ServerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ServerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(name).map_err(serde::de::Error::custom)
    }
}

/// Fix the configuration, or refuse the peer: a server's name is empty, too long or has control
/// characters.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{name}` cannot name a server: {problem}; choose a name of 1 to {} printable bytes", ServerId::MAX_BYTES)]
pub struct InvalidServerName {
    /// The beginning of the refused name, escaped.
    name: String,
    problem: &'static str,
}

/// The number of a compaction job, unique per owner. Owner and number together name a job in the
/// federation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(ServerId::new("high-1").unwrap().as_str(), "high-1");
        assert!(ServerId::new("").is_err());
        assert!(ServerId::new("a\nb").is_err());
        assert!(ServerId::new("x".repeat(ServerId::MAX_BYTES)).is_ok());
        let error = ServerId::new("x".repeat(100_000)).unwrap_err().to_string();
        assert!(error.len() < 200, "a refused name must not flood a log: {} bytes", error.len());
    }
}
