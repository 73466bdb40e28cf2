//! Why a handshake failed: the names under which failures are counted.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// What was wrong with a certificate that the authority has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotThisOne {
    OtherFederation { theirs: String },
    OtherServer { expected: String, presented: String },
}

impl fmt::Display for NotThisOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotThisOne::OtherFederation { theirs } => write!(f, "the certificate is of federation {theirs}"),
            NotThisOne::OtherServer { expected, presented } => {
                write!(f, "the server there is {presented}, not {expected}")
            }
        }
    }
}

impl std::error::Error for NotThisOne {}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HandshakeFailure {
    /// The peer does not speak TLS.
    PlainText,
    /// It speaks no TLS 1.3, or nothing else that is asked for.
    Incompatible,
    /// It names no protocol that is spoken here.
    UnknownProtocol,
    /// It shows no certificate.
    NoCertificate,
    /// Another authority has signed its certificate.
    ForeignAuthority,
    /// Its certificate has ended; or a clock is wrong.
    Expired,
    /// Its certificate is not valid yet; or a clock is wrong.
    NotYetValid,
    /// It was removed from the federation.
    Removed,
    /// Its certificate is of another federation.
    OtherFederation,
    /// It is not the server that was asked for.
    OtherServer,
    /// It does not have the key of its certificate, or its certificate is damaged.
    BadCertificate,
    /// What it sends was not made for this handshake: damaged, forged or replayed.
    Undecryptable,
    /// It refuses this server.
    RefusedByPeer,
    /// It hung up.
    Closed,
    /// It took too long.
    TimedOut,
    /// There were too many handshakes at a time.
    TooMany,
    /// It has as many connections as one peer may have.
    OverQuota,
    /// It asks for a certificate with a token that is not good, or for one that it may not have.
    NotEnrolled,
    /// Anything else against the protocol.
    Malformed,
}

impl HandshakeFailure {
    /// All there are.
    pub const ALL: [HandshakeFailure; 19] = [
        HandshakeFailure::PlainText,
        HandshakeFailure::Incompatible,
        HandshakeFailure::UnknownProtocol,
        HandshakeFailure::NoCertificate,
        HandshakeFailure::ForeignAuthority,
        HandshakeFailure::Expired,
        HandshakeFailure::NotYetValid,
        HandshakeFailure::Removed,
        HandshakeFailure::OtherFederation,
        HandshakeFailure::OtherServer,
        HandshakeFailure::BadCertificate,
        HandshakeFailure::Undecryptable,
        HandshakeFailure::RefusedByPeer,
        HandshakeFailure::Closed,
        HandshakeFailure::TimedOut,
        HandshakeFailure::TooMany,
        HandshakeFailure::OverQuota,
        HandshakeFailure::NotEnrolled,
        HandshakeFailure::Malformed,
    ];

    /// The name under which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            HandshakeFailure::PlainText => "plain-text",
            HandshakeFailure::Incompatible => "incompatible",
            HandshakeFailure::UnknownProtocol => "unknown-protocol",
            HandshakeFailure::NoCertificate => "no-certificate",
            HandshakeFailure::ForeignAuthority => "foreign-authority",
            HandshakeFailure::Expired => "expired",
            HandshakeFailure::NotYetValid => "not-yet-valid",
            HandshakeFailure::Removed => "removed",
            HandshakeFailure::OtherFederation => "other-federation",
            HandshakeFailure::OtherServer => "other-server",
            HandshakeFailure::BadCertificate => "bad-certificate",
            HandshakeFailure::Undecryptable => "undecryptable",
            HandshakeFailure::RefusedByPeer => "refused-by-peer",
            HandshakeFailure::Closed => "closed",
            HandshakeFailure::TimedOut => "timed-out",
            HandshakeFailure::TooMany => "too-many",
            HandshakeFailure::OverQuota => "over-quota",
            HandshakeFailure::NotEnrolled => "not-enrolled",
            HandshakeFailure::Malformed => "malformed",
        }
    }

    /// What an error of TLS means.
    pub fn of(error: &Error) -> HandshakeFailure {
        match error {
            // A record that begins with no type of TLS: HTTP/2's preface, or our own magic.
            Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
                HandshakeFailure::PlainText
            }
            Error::PeerIncompatible(_) => HandshakeFailure::Incompatible,
            Error::NoApplicationProtocol => HandshakeFailure::UnknownProtocol,
            Error::NoCertificatesPresented => HandshakeFailure::NoCertificate,
            Error::InvalidCertificate(error) => of_certificate(error),
            Error::DecryptError => HandshakeFailure::Undecryptable,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => HandshakeFailure::UnknownProtocol,
            Error::AlertReceived(AlertDescription::ProtocolVersion) => HandshakeFailure::Incompatible,
            Error::AlertReceived(_) => HandshakeFailure::RefusedByPeer,
            _ => HandshakeFailure::Malformed,
        }
    }

    /// What an error of a handshake means.
    pub fn of_io(error: &io::Error) -> HandshakeFailure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => HandshakeFailure::of(error),
            None if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                HandshakeFailure::TimedOut
            }
            None => HandshakeFailure::Closed,
        }
    }
}

fn of_certificate(error: &CertificateError) -> HandshakeFailure {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => HandshakeFailure::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => HandshakeFailure::NotYetValid,
        CertificateError::Revoked => HandshakeFailure::Removed,
        CertificateError::UnknownIssuer => HandshakeFailure::ForeignAuthority,
        CertificateError::Other(other) => match other.0.downcast_ref::<NotThisOne>() {
            Some(NotThisOne::OtherFederation { .. }) => HandshakeFailure::OtherFederation,
            Some(NotThisOne::OtherServer { .. }) => HandshakeFailure::OtherServer,
            None => HandshakeFailure::BadCertificate,
        },
        _ => HandshakeFailure::BadCertificate,
    }
}

/// What an error of TLS means for people, and what to do about it.
pub fn explain(error: &Error) -> String {
    let what = match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => other.0.to_string(),
        other => other.to_string(),
    };
    let hint = match error {
        Error::AlertReceived(AlertDescription::CertificateRevoked) => {
            "this server was removed from the federation; to join anew it needs a token and a folder without identity/"
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "it takes this server's certificate for expired: compare the clocks of both"
        }
        Error::AlertReceived(AlertDescription::UnknownCA) => "it is of another federation",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it asks for a certificate: join its federation with a token"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => "it is of another federation",
        Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "compare the clocks of both servers",
        Error::InvalidMessage(_) => "it does not speak TLS: it has no identity, or is no server of a federation",
        _ => return what,
    };
    format!("{what} ({hint})")
}
