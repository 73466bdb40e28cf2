//! Reads of shards whose primaries are other servers, from the copies here, for clients that have
//! said `READONLY`.
//!
//! What is answered so: commands with keys that only read, alone or in a transaction of nothing
//! else that watches no key; but none that counts ranks, as what was counted is kept for later, and
//! the keys change meanwhile. Where no copy can be read, since it is being opened, too far behind,
//! or gone, the client is sent to the primary, as if it had not said `READONLY`: cluster clients go
//! there and ask again.
//!
//! Invariants: no write comes here, and the keyspace of a copy takes none; a reply of a copy that
//! has ended before it was complete is not sent.
//!
//! Threads: any. An event loop reads what is in memory, and waits neither for the device nor for a
//! copy that is about to show something new: then a thread that may wait does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_keyspace::error::Failure;
use ecotone_keyspace::{Blocking, CancellationToken, Replica, Slot, WriteGroup};

use crate::client::Client;
use crate::cluster_view::Destination;
use crate::command::cluster::moved;
use crate::command::run::{ExecutionMode, Step, execute_command, key_slots};
use crate::command::{Command, KeyPositions, flag, table, transactions};
use crate::protocol::reply::Reply;
use crate::service::Service;

/// Whether a command can be answered from a copy.
fn is_answered(command: &Command) -> bool {
    const REFUSED: u32 = flag::WRITE | flag::COUNTS_RANKS;
    command.keys != KeyPositions::None && command.has(flag::READONLY) && command.flags & REFUSED == 0
}

/// The copy that answers a request whose keys are another server's, or nobody's.
pub(crate) fn find(
    service: &Service,
    client: &mut Client,
    command: &Command,
    arguments: &[&[u8]],
) -> Option<Arc<Replica>> {
    if !client.seen(&service.cluster).reads_replicas {
        return None;
    }
    let replicas = service.replicas.get()?;
    let slots: Vec<Slot> = match command.name {
        "exec" => of_queued(client)?,
        _ if is_answered(command) => key_slots(command, arguments).collect(),
        _ => return None,
    };
    let first = *slots.first()?;
    // As the primary does: in a cluster all keys of a command are in one slot.
    let is_together = !client.seen(&service.cluster).is_cluster() || slots.iter().all(|slot| *slot == first);
    let replica = replicas.find(first).filter(|_| is_together)?;
    replica.has(slots.into_iter()).then_some(replica)
}

/// The slots of a transaction that only reads.
fn of_queued(client: &Client) -> Option<Vec<Slot>> {
    let transaction = client.transaction.as_ref().filter(|_| client.watched.is_empty())?;
    let mut slots = Vec::new();
    for queued in &transaction.queued {
        let arguments: Vec<&[u8]> = queued.iter().map(Vec::as_slice).collect();
        let command = table::resolve(&arguments).ok().filter(|command| is_answered(command))?;
        slots.extend(key_slots(command, &arguments));
    }
    Some(slots)
}

/// Carries out a request that is not queued. None where the copy has ended.
pub(crate) fn carry_out(
    service: &Service,
    client: &mut Client,
    replica: &Replica,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
    blocking: Blocking,
) -> Option<Step> {
    let may_wait = blocking != Blocking::Never;
    let Some(_held) = replica.read(may_wait) else {
        return (!may_wait && !replica.is_over()).then_some(Step::WouldBlock);
    };
    // Never committed: nothing is written into it.
    let mut group = WriteGroup::new(replica.keyspace().clone());
    let token = || CancellationToken::from_now(client.info.cancellation.clone(), replica.over().clone());
    group.begin_request(may_wait.then(token));
    let replied = reply.len();
    let step = match command.name {
        "exec" => transactions::carry_out(service, client, &mut group, command, reply, blocking),
        _ => execute_command(service, client, &mut group, command, arguments, reply, ExecutionMode::from(blocking)),
    };
    match step {
        Step::Done { .. } if replica.is_over() => {
            reply.truncate(replied);
            None
        }
        Step::Done { .. } => {
            replica.was_read();
            Some(Step::Done { depends: false })
        }
        step => Some(step),
    }
}

/// What a client is answered where the copy has ended that its request was carried out at.
pub(crate) fn ended(service: &Service, client: &mut Client, command: &Command, arguments: &[&[u8]]) -> Failure {
    let is_tls = client.info.is_tls.load(Ordering::Relaxed);
    let seen = client.seen(&service.cluster);
    seen.refresh(&service.cluster);
    match seen.destination(key_slots(command, arguments)) {
        Destination::Moved { slot, server } => moved(seen.view(), slot, server, is_tls),
        // It may be this server's by now, or nobody's yet.
        _ => Failure::text("TRYAGAIN the copy that was read here is not a replica any more: ask again"),
    }
}
