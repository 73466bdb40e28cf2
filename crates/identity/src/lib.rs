//! Who a server is: the federation's authority, servers' certificates, join tokens, and the rules
//! by which one server accepts another.
//!
//! What must never be in it: sockets, gRPC, roles (coordinator, owner, worker), settings.
//!
//! # What holds whatever fails
//!
//! - A server is accepted only with a certificate that the authority of this federation has signed,
//!   that is valid now, and whose server was not removed. The private key of a server never leaves
//!   its folder; that of the authority never leaves a server's memory but sealed.
//! - A token carries its own proof, and its end. That it is spent once, and that a certificate is
//!   signed after that only, is for who keeps the federation's log.
//! - What is decided by time is decided by functions of a time that is passed in.
//!
//! # Failure modes
//!
//! A file that cannot be read, parsed or written is an error that names it; nothing is replaced
//! but whole and synced. A clock that is wrong by more than the margins makes certificates expired
//! or not yet valid, and the refusals say so.
//!
//! # Threads
//!
//! All types may be shared. Whatever is given a folder blocks on the device, and [`Identity`] where
//! it stores a new certificate.

pub mod authority;
mod certificates;
pub mod clock;
pub mod error;
pub mod failure;
mod files;
pub mod founding;
pub mod identity;
pub mod join;
pub mod names;
pub mod refusal;
pub mod renewal;
pub mod seal;
pub mod tls;
pub mod token;

pub use authority::Authority;
pub use certificates::{Issued, check_request, requested_key};
pub use clock::{Clock, SystemClock, Timestamp};
pub use error::{Error, Result};
pub use failure::HandshakeFailure;
pub use founding::{Founded, found};
pub use identity::Identity;
pub use join::Joined;
pub use names::{FederationId, MemberId, Peer};
pub use seal::SealKey;
pub use token::{JoinToken, TokenClaim};
