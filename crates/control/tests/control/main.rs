//! The control plane's parts, each by itself. All of it together, with everything that goes wrong:
//! `sim`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod dealing;
mod generation;
mod log_files;
mod map_rules;
mod messages;
mod placing;
mod voters_table;

use ecotone_control::entry::{Entry, NewServer, Proposal};
use ecotone_control::ids::{DirectoryId, MemberId};
use ecotone_control::map::{Addresses, Features, Role};
use ecotone_types::ServerId;

fn server(number: u8) -> NewServer {
    NewServer {
        directory: DirectoryId([number; 16]),
        name: ServerId::new(format!("server-{number}")).unwrap(),
        addresses: Addresses { peers: format!("10.0.0.{number}:7000"), clients: format!("10.0.0.{number}:6379") },
        zone: ["north", "south", "west"][usize::from(number) % 3].into(),
        role: Role::Data,
        features: Features { min: 1, max: 2 },
    }
}

fn found() -> Proposal {
    let entry = Entry::Found { server: server(1), authority: Some(vec![1, 2, 3]), with_shard: true };
    Proposal { by: MemberId(1), entry }
}
