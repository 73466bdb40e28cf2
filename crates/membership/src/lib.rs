//! A running server's part in the control plane: it drives [`ecotone_control`]'s node, whose log
//! lies in the server's folder ([`ecotone_raftlog`]), over connections of servers that have shown
//! who they are ([`ecotone_transport`]).
//!
//! [`Membership`] is what the rest of the server knows of it: the map of now, who leads, and a way
//! to ask for a change. [`folder`] is for folders of servers that do not run.
//!
//! What must never be in it: what the map means (control), how certificates are made and checked
//! (identity), jobs and their placement (cluster), stores.
//!
//! # What holds whatever fails
//!
//! - Nothing is answered before it is durable; while its disk fails this server takes no part in the
//!   group, and goes on by its last map.
//! - A removed server is refused from the moment that its removal is applied here.
//! - What is asked for may be asked twice: see [`ecotone_control::entry`].
//!
//! # Threads
//!
//! One owns the node (`ecotone-control`), one its log (`ecotone-raftlog`), one carries messages
//! (`ecotone-members`). None is under a cap or quota, none waits for a store.

mod driver;
mod duties;
mod enrollment;
pub mod error;
mod events;
pub mod folder;
mod known;
mod membership;
mod outbox;
mod proposals;
mod seal;
mod service;
mod shared;

pub use error::{Error, Result};
pub use events::{MAX_WAITING_BYTES, MAX_WAITING_BYTES_OF_MEMBER, MAX_WAITING_EVENTS, MAX_WAITING_OF_MEMBER};
pub use known::{Announced, Known};
pub use membership::{FEATURES, Membership, Options};
pub use proposals::{Decided, Decision};
pub use service::Service;
