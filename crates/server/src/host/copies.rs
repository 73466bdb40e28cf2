//! The copies of shards as people see and steer them: what is known of each, what moves, and who is
//! made the primary.
//!
//! A server knows its own copies; the one that leads knows what all have said of theirs. What nobody
//! has said is `null`, never a guess.
//!
//! Failure: what is asked for and cannot be is refused with what to do instead. What is refused here
//! is refused before anybody is asked; whatever changes meanwhile, the log decides.
//!
//! Threads: any; a change waits for other servers, for at most ten seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_control::map::{Map, Server, ServerState, Shard};
use ecotone_control::placing::{Change, Presence, next_changes};
use ecotone_control::settings::{POWER_CAP_WATTS, POWER_MODE, Power, Replication};
use ecotone_membership::Known;
use ecotone_replica::promotion::Serving;
use ecotone_replication::{Copies, Facts, Phase, Repair, Reported, is_replicated};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::named::{counted, name_of, server_json};

/// What drives copies on this server, once something does. Weak: who stops the server ends it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopiesHandle(Arc<OnceLock<Weak<Copies>>>);

impl CopiesHandle {
    /// These are driven from now on.
    pub(crate) fn drives(&self, copies: &Arc<Copies>) {
        let _ = self.0.set(Arc::downgrade(copies));
    }

    /// What drives copies now.
    pub(crate) fn get(&self) -> Option<Arc<Copies>> {
        self.0.get()?.upgrade()
    }

    /// Of each copy here, what there is to show.
    pub(crate) fn facts(&self) -> Vec<(ShardId, Facts)> {
        self.get().map(|copies| copies.facts()).unwrap_or_default()
    }
}

/// What the names of settings of the federation are, and what is in force.
pub(super) fn settings_in_force(map: &Map) -> BTreeMap<String, Option<String>> {
    let of = Replication::of(map);
    let number = |number: u64| Some(number.to_string());
    let mut all: BTreeMap<String, Option<String>> =
        map.settings.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    all.extend([
        ("replication.copies".to_owned(), number(of.copies as u64)),
        ("replication.level".to_owned(), Some(of.level.name().to_owned())),
        ("replication.min_in_sync".to_owned(), number(of.min_in_sync as u64)),
        ("replication.max_lag_bytes".to_owned(), number(of.max_lag_bytes)),
        ("replication.max_staleness_ms".to_owned(), of.max_staleness_ms.and_then(number)),
        ("replication.seed_bytes_per_s".to_owned(), of.seed_bytes_per_s.and_then(number)),
    ]);
    let power = Power::of(map);
    all.extend([(POWER_MODE.to_owned(), power.mode), (POWER_CAP_WATTS.to_owned(), power.cap_watts.and_then(number))]);
    all
}

/// A copy says ten times a second how it is; one that has said nothing for so long is silent.
const MAX_REPORT_AGE: Duration = Duration::from_secs(3);

/// What is known here of copies.
#[derive(Default)]
pub(super) struct CopiesSeen {
    /// Of this server.
    pub(super) own: BTreeMap<ShardId, Facts>,
    /// Of all, where this server leads.
    pub(super) reported: BTreeMap<(ShardId, MemberId), Reported>,
}

impl CopiesSeen {
    pub(super) fn of(handle: &CopiesHandle) -> CopiesSeen {
        let Some(copies) = handle.get() else { return CopiesSeen::default() };
        CopiesSeen {
            own: copies.facts().into_iter().collect(),
            reported: copies.reports().into_iter().map(|of| ((of.report.shard, of.member), of)).collect(),
        }
    }

    /// Whether it is known that a copy serves clients as the primary.
    fn serves(&self, shard: ShardId, member: MemberId, known: &Known) -> bool {
        if member == known.member {
            return self.own.get(&shard).is_some_and(|facts| facts.is_serving);
        }
        let said = self.reported.get(&(shard, member)).map(|said| said.report.serving);
        matches!(said, Some(Serving::Primary { has_lease: true, .. }))
    }
}

/// Copies are wanted, and one alone has what is acknowledged.
pub(crate) fn is_unprotected(map: &Map, shard: &Shard) -> bool {
    is_replicated(map, shard) && shard.in_sync.len() <= 1
}

/// Copies that a shard should have, and has not in sync.
pub(crate) fn missing_copies(map: &Map, shard: &Shard) -> usize {
    Replication::of(map).copies.saturating_sub(shard.in_sync.len())
}

/// What is in force for all shards, and how many are not as they should be.
pub(super) fn replication_json(map: &Map) -> Value {
    let of = Replication::of(map);
    let count = |is: &dyn Fn(&Shard) -> bool| map.shards.values().filter(|shard| is(shard)).count();
    json!({
        "copies": of.copies,
        "level": of.level.name(),
        "min_in_sync": of.min_in_sync,
        "max_lag_bytes": of.max_lag_bytes,
        "unprotected_shards": count(&|shard| is_unprotected(map, shard)),
        "incomplete_shards": count(&|shard| missing_copies(map, shard) > 0),
    })
}

pub(super) fn shard_json(known: &Known, seen: &CopiesSeen, id: ShardId, shard: &Shard) -> Value {
    let map = &known.map;
    json!({
        "shard": id.0,
        "slots": shard.slots.iter().map(|range| [range.first, range.last]).collect::<Vec<_>>(),
        "primary": shard.primary.map(|primary| name_of(map, primary)),
        "epoch": shard.epoch.0,
        "wanted_copies": Replication::of(map).copies,
        "unprotected": is_unprotected(map, shard),
        "copies": shard.copies.iter().map(|member| copy_json(known, seen, id, shard, *member)).collect::<Vec<_>>(),
    })
}

fn copy_json(known: &Known, seen: &CopiesSeen, id: ShardId, shard: &Shard, member: MemberId) -> Value {
    let own = seen.own.get(&id).filter(|_| member == known.member);
    // The primary here knows what the others lack, whoever leads.
    let lag_at_primary = seen.own.get(&id).and_then(|facts| *facts.lag_bytes.get(&member)?);
    let said = seen.reported.get(&(id, member));
    let report = said.map(|said| said.report);
    let position = own.map(|facts| facts.position).or(report.map(|report| report.position));
    let staleness = own.and_then(|facts| facts.staleness);
    let is_primary = shard.primary == Some(member);
    let lag_said = || report.filter(|report| report.serving == Serving::Replica).map(|report| report.lag_bytes);
    let seeding = own.and_then(|facts| facts.seeding).or(report.and_then(|report| report.seeding));
    let serves = own.map(|facts| facts.is_serving).or(report.map(|_| seen.serves(id, member, known)));
    let is_late = said.is_none_or(|said| said.at.elapsed() > MAX_REPORT_AGE);
    json!({
        "server": name_of(&known.map, member),
        "role": if is_primary { "primary" } else { "replica" },
        "in_sync": shard.in_sync.contains(&member),
        "serves": serves,
        "whole": own.map(|facts| facts.is_whole).or(report.map(|report| report.is_whole)),
        "epoch": own.map(|facts| facts.epoch.0).or(report.map(|report| report.epoch.0)),
        "position": position.map(|at| json!({ "epoch": at.epoch.0, "number": at.number })),
        "lag_bytes": staleness.map(|of| of.bytes).or(lag_at_primary).or_else(lag_said).filter(|_| !is_primary),
        "lag_ms": staleness.map(|of| of.us / 1_000).filter(|_| !is_primary),
        "seeding": seeding.map(|(done, all)| json!({
            "bytes": done,
            "of_bytes": all,
            "seconds_left": said.and_then(Reported::seeding_left).map(|left| left.as_secs()),
        })),
        "trouble": own.and_then(|facts| facts.trouble.clone()),
        // Only the leader knows.
        "silent": known.leads().then_some(is_late && own.is_none()),
    })
}

/// Shards whose copies leave a server by themselves.
pub(super) fn leaving_by_itself(map: &Map, member: MemberId) -> Vec<u32> {
    let leaves = |shard: &Shard| shard.copies.contains(&member) && is_replicated(map, shard);
    map.shards.iter().filter(|(_, shard)| leaves(shard)).map(|(id, _)| id.0).collect()
}

/// What the leader has begun about where copies are, and what comes next.
pub(super) fn under_way(known: &Known, seen: &CopiesSeen) -> Vec<Value> {
    let map = &known.map;
    let members = || map.members().map(|(member, _)| member);
    let alive: BTreeSet<MemberId> = members().filter(|member| !known.gone.contains(member)).collect();
    let mut next: BTreeMap<ShardId, Vec<Value>> = BTreeMap::new();
    // Whom the leader has given up is not known here.
    let presence = Presence { alive: &alive, given_up: &BTreeSet::new() };
    for change in next_changes(map, Replication::of(map).copies, presence, &BTreeSet::new()) {
        let (what, member) = match change {
            Change::AddCopy { member, .. } => ("add-copy", member),
            Change::RemoveCopy { member, .. } => ("remove-copy", member),
            Change::HandOver { to, .. } => ("switch-over", to),
        };
        let shard = change.shard();
        next.entry(shard).or_default().push(json!({ "change": what, "server": name_of(map, member) }));
    }
    let is_draining = |member: &MemberId| map.server(*member).is_some_and(|of| of.state == ServerState::Draining);
    let names = |members: &mut dyn Iterator<Item = &MemberId>| {
        members.map(|member| name_of(map, *member)).collect::<Vec<String>>()
    };
    let mut all = Vec::new();
    for (id, shard) in map.shards.iter().filter(|(_, shard)| is_replicated(map, shard)) {
        let adding =
            names(&mut shard.copies.iter().filter(|copy| !shard.in_sync.contains(*copy) && !is_draining(copy)));
        let leaving = names(&mut shard.copies.iter().filter(|copy| is_draining(copy)));
        let next = next.remove(id).unwrap_or_default();
        if adding.is_empty() && leaving.is_empty() && next.is_empty() {
            continue;
        }
        let seeding = shard.copies.iter().find_map(|member| {
            let copy = copy_json(known, seen, *id, shard, *member);
            (!copy["seeding"].is_null()).then(|| copy["seeding"].clone())
        });
        all.push(json!({ "shard": id.0, "adding": adding, "leaving": leaving, "next": next, "seeding": seeding }));
    }
    all
}

fn shard_of(map: &Map, id: ShardId) -> Result<&Shard, String> {
    map.shards.get(&id).ok_or_else(|| match map.shards.len() {
        0 => "no slots are dealt yet, so there are no shards: FEDERATION CREATE deals them".to_owned(),
        count => format!("there is no {id} among the {}: see FEDERATION STATUS", counted(count)),
    })
}

/// The shard, which must have copies that are driven; and what drives them here.
fn replicated<'m>(
    handle: &CopiesHandle,
    map: &'m Map,
    id: ShardId,
    member: MemberId,
) -> Result<(&'m Shard, Arc<Copies>), String> {
    let shard = shard_of(map, id)?;
    if !is_replicated(map, shard) {
        return Err(format!(
            "{id} has one copy, and is to have no more: `ecotone cluster set HOST:PORT replication.copies 2` makes another one, which can \
             take it over; or it is moved by hand while its server is stopped (FEDERATION MOVE)"
        ));
    }
    if !shard.copies.contains(&member) {
        let copies: Vec<String> = shard.copies.iter().map(|copy| name_of(map, *copy)).collect();
        return Err(format!(
            "{} has no copy of {id}; there are copies on: {}",
            name_of(map, member),
            copies.join(", ")
        ));
    }
    let copies = handle.get().ok_or("this server drives no copies yet: ask another one, or again in a moment")?;
    Ok((shard, copies))
}

pub(super) fn switch_over(
    handle: &CopiesHandle,
    known: &Known,
    id: ShardId,
    (member, server): (MemberId, &Server),
) -> Result<Value, String> {
    let map = &known.map;
    let (shard, copies) = replicated(handle, map, id, member)?;
    if server.state == ServerState::Draining && shard.primary != Some(member) {
        return Err(format!("{} is drained: it gets no shards", server.name));
    }
    let from = shard.primary.map(|primary| server_json(map, primary));
    let began = Instant::now();
    let is_there = shard.primary == Some(member);
    if !is_there {
        copies.hand_over(id, member).map_err(|error| error.to_string())?;
    }
    Ok(json!({
        "shard": id.0,
        "from": from,
        "to": server_json(map, member),
        "took_ms": began.elapsed().as_millis() as u64,
        "decided": { "outcome": if is_there { "unchanged" } else { "changed" } },
    }))
}

pub(super) fn promote(
    handle: &CopiesHandle,
    known: &Known,
    id: ShardId,
    (member, server): (MemberId, &Server),
    force: bool,
) -> Result<Value, String> {
    let map = &known.map;
    let (shard, copies) = replicated(handle, map, id, member)?;
    let seen = CopiesSeen::of(handle);
    let others: Vec<String> =
        shard.in_sync.iter().filter(|other| **other != member).map(|other| name_of(map, *other)).collect();
    let is_in_sync = shard.in_sync.contains(&member);
    if !force {
        return Err(refusal(map, id, shard, (member, server), &others));
    }
    if !known.leads() {
        let leader = known.leader.and_then(|leader| map.server(leader));
        let whom = leader.map(|leader| format!("{} at {}", leader.name, leader.addresses.clients));
        return Err(format!(
            "nothing was changed: only the server that leads knows which copies serve, so it must be asked: {}",
            whom.unwrap_or_else(|| "nobody leads now, and nothing can be decided until somebody does".to_owned())
        ));
    }
    if let Some(primary) = shard.primary.filter(|primary| seen.serves(id, *primary, known)) {
        let primary = name_of(map, primary);
        return Err(format!(
            "{primary} is the primary of {id} and serves it: nothing needs to be forced, and nothing was changed. FEDERATION SWITCHOVER hands \
             the shard over without loss; if {primary} is to be given up, stop it first"
        ));
    }
    let from = shard.primary.map(|primary| server_json(map, primary));
    warn!(
        shard = id.0,
        server = %server.name,
        is_in_sync,
        "a copy is made the primary by force, as was asked for: what only other copies have is lost"
    );
    copies.force(id, member).map_err(|error| error.to_string())?;
    Ok(json!({
        "shard": id.0,
        "from": from,
        "to": server_json(map, member),
        "was_in_sync": is_in_sync,
        "given_up": others,
        "decided": { "outcome": "changed" },
    }))
}

/// Has the files of a shard's copies compared and mended, or only says how far that is.
pub(super) fn repair(
    handle: &CopiesHandle,
    known: &Known,
    id: ShardId,
    only: Option<MemberId>,
    begin: bool,
) -> Result<Value, String> {
    let map = &known.map;
    // Any member of it will do to see that there are copies.
    let member = only.or_else(|| shard_of(map, id).ok()?.copies.first().copied()).unwrap_or(known.member);
    let (shard, copies) = replicated(handle, map, id, member)?;
    let members: Vec<MemberId> =
        shard.copies.iter().copied().filter(|of| only.is_none_or(|only| only == *of)).collect();
    // Side by side: one that does not answer holds up none of the others.
    let answers: Vec<Result<Repair, String>> = std::thread::scope(|scope| {
        let ask = |member: MemberId| {
            let copies = &copies;
            scope.spawn(move || copies.repair(id, member, begin).map_err(|error| error.to_string()))
        };
        let asked: Vec<_> = members.iter().map(|member| ask(*member)).collect();
        let panicked = || Err("asking it has failed; the log of the server says more".to_owned());
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let is_over = |answer: &Result<Repair, String>| answer.as_ref().map_or(true, Repair::is_over);
    let sum = |of: fn(&Repair) -> u64| answers.iter().flatten().map(of).sum::<u64>();
    let (differing, replaced) = (sum(|repair| repair.differing), sum(|repair| repair.replaced));
    let is_whole = |answer: &Result<Repair, String>| answer.as_ref().is_ok_and(|repair| repair.phase == Phase::Done);
    Ok(json!({
        "shard": id.0,
        "over": answers.iter().all(is_over),
        // All files of all copies were compared, and what differed was replaced.
        "whole": answers.iter().all(is_whole) && differing == replaced,
        "differing": differing,
        "replaced": replaced,
        "copies": members.iter().zip(&answers).map(|(member, answer)| repair_json(map, *member, answer)).collect::<Vec<_>>(),
    }))
}

fn repair_json(map: &Map, member: MemberId, answer: &Result<Repair, String>) -> Value {
    let server = name_of(map, member);
    let repair = match answer {
        Ok(repair) => repair,
        Err(why) => return json!({ "server": server, "phase": "unknown", "trouble": why }),
    };
    let named = repair.named.iter().map(|differing| {
        json!({
            "file": differing.file,
            "what": differing.what,
            "replaced": differing.left.is_none(),
            "from": differing.from.map(|from| name_of(map, from)),
            "why_not": differing.left,
        })
    });
    json!({
        "server": server,
        "phase": match repair.phase {
            Phase::Waiting => "waiting",
            Phase::Comparing => "comparing",
            Phase::Done => "done",
            Phase::Failed => "failed",
        },
        "role": if repair.is_primary { "primary" } else { "replica" },
        "files": repair.files,
        "of_files": repair.of_files,
        "bytes": repair.bytes,
        "of_bytes": repair.of_bytes,
        "differing": repair.differing,
        "replaced": repair.replaced,
        "named": named.collect::<Vec<_>>(),
        "handed_over_to": repair.handed_over_to.map(|to| name_of(map, to)),
        "trouble": repair.trouble,
    })
}

/// What to do instead of losing something.
fn refusal(map: &Map, id: ShardId, shard: &Shard, (member, server): (MemberId, &Server), others: &[String]) -> String {
    if shard.primary == Some(member) {
        return format!(
            "nothing was changed: {} is the primary of {id} already. Where it does not serve because it may lack something, start the servers of \
             the others ({}), or, if they are lost for good, ask again with FORCE",
            server.name,
            if others.is_empty() { "there are none".to_owned() } else { others.join(", ") }
        );
    }
    let have = match others {
        [] => "no other copy was in sync".to_owned(),
        others => format!("{} may have acknowledged writes that {} lacks", others.join(", "), server.name),
    };
    let instead = match shard.primary {
        Some(primary) => format!(
            "As long as {} runs, FEDERATION SWITCHOVER hands the shard over without loss; if it is lost, another copy in sync takes over by itself",
            name_of(map, primary)
        ),
        None => {
            "One of the copies in sync takes over by itself as soon as enough of them are back: start their servers"
                .to_owned()
        }
    };
    format!(
        "nothing was changed: to make {} the primary of {id} like this may lose acknowledged writes ({have}). {instead}. Only if they are lost \
         for good, stop the old primary and ask again with FORCE",
        server.name
    )
}

/// `CLUSTER FAILOVER`: this server becomes the primary of all shards of which it has another copy.
pub(super) fn fail_over(handle: &CopiesHandle, known: &Known, force: bool) -> Result<(), String> {
    let own = replicas_of(known, known.member);
    if own.is_empty() {
        return Err("You should send CLUSTER FAILOVER to a replica".into());
    }
    let copies = handle.get().ok_or("this server drives no copies yet: ask again in a moment")?;
    if let Some((id, _)) = own.iter().find(|(_, shard)| !force && !shard.in_sync.contains(&known.member)) {
        return Err(format!("the copy of {id} here is not in sync: wait until it is, see FEDERATION STATUS"));
    }
    for (id, _) in own {
        let done = if force { copies.force(id, known.member) } else { copies.hand_over(id, known.member) };
        done.map_err(|error| error.to_string())?;
        info!(shard = id.0, force, "this server has become the primary, as a client asked for");
    }
    Ok(())
}

/// The shards of which a server has a copy, and another one the primary.
fn replicas_of(known: &Known, member: MemberId) -> Vec<(ShardId, &Shard)> {
    let is_replica = |shard: &Shard| shard.copies.contains(&member) && shard.primary != Some(member);
    known.map.shards.iter().filter(|(_, shard)| is_replica(shard)).map(|(id, shard)| (*id, shard)).collect()
}

/// Lines of INFO's section `Cluster`: for people, and for `ecotone top`.
pub(super) fn lines(known: &Known, seen: &CopiesSeen) -> Vec<(String, String)> {
    let map = &known.map;
    if !map.shards.values().any(|shard| is_replicated(map, shard)) {
        return Vec::new();
    }
    let of = Replication::of(map);
    let count = |is: &dyn Fn(&Shard) -> bool| map.shards.values().filter(|shard| is(shard)).count().to_string();
    let is_in_sync = |id: &ShardId| map.shards.get(id).is_some_and(|shard| shard.in_sync.contains(&known.member));
    let behind = seen.own.values().filter_map(|facts| facts.staleness);
    let (bytes, us) = behind.fold((0, 0), |(bytes, us), of| (of.bytes.max(bytes), of.us.max(us)));
    let seeding = seen.own.values().filter_map(|facts| facts.seeding);
    let (done, all) = seeding.fold((0, 0), |sum, (done, all)| (sum.0 + done, sum.1 + all));
    let sum = |of: fn(&Facts) -> u64| seen.own.values().map(of).sum::<u64>().to_string();
    let line = |name: &str, value: String| (format!("copies_{name}"), value);
    let mut lines = vec![
        line("wanted", of.copies.to_string()),
        line("level", of.level.name().to_owned()),
        line("here", seen.own.len().to_string()),
        line("here_in_sync", seen.own.keys().filter(|id| is_in_sync(id)).count().to_string()),
        line("max_lag_bytes", bytes.to_string()),
        line("max_lag_ms", Duration::from_micros(us).as_millis().to_string()),
        line("seeding_bytes", done.to_string()),
        line("seeding_of_bytes", all.to_string()),
        line("sent_bytes_total", sum(|facts| facts.bytes_sent)),
        line("spared_bytes_total", sum(|facts| facts.bytes_spared)),
        line("compared_bytes", sum(|facts| facts.scrubbed.compared_bytes)),
        line("files_replaced", sum(|facts| facts.scrubbed.replaced)),
        line("files_damaged", sum(|facts| facts.scrubbed.damaged.len() as u64)),
        line("shards_unprotected", count(&|shard| is_unprotected(map, shard))),
        line("shards_incomplete", count(&|shard| missing_copies(map, shard) > 0)),
    ];
    let trouble = seen.own.iter().find_map(|(id, facts)| Some((id, facts.trouble.as_ref()?)));
    lines.extend(trouble.map(|(id, why)| line("trouble", format!("{id}: {why}").replace(['\r', '\n'], " "))));
    lines
}

#[cfg(test)]
mod tests {
    use ecotone_control::entry::Entry;
    use ecotone_control::ids::Epoch;
    use ecotone_replica::position::Position;
    use ecotone_replica::receiver::Staleness;
    use ecotone_replica::wire::ShardReport;

    use super::super::federation::tests::{federation, with};
    use super::super::named::named;
    use super::*;

    /// Three servers and six shards that are to have three copies; shard 1 has its primary on `a`, and
    /// its others on `b`, in sync, and `c`, not yet.
    fn copied() -> Known {
        let mut known = federation(&["a", "b", "c"]);
        let (shard, epoch) = (ShardId(1), Epoch(1));
        for entry in [
            Entry::Set { name: "replication.copies".into(), value: Some("3".into()) },
            Entry::AddCopy { shard, epoch, member: MemberId(2) },
            Entry::AddCopy { shard, epoch, member: MemberId(3) },
            Entry::SetInSync { shard, epoch, set_version: 1, in_sync: [MemberId(1), MemberId(2)].into() },
        ] {
            known = with(&known, entry);
        }
        known
    }

    fn report(shard: u32, lag_bytes: u64, seeding: Option<(u64, u64)>) -> ShardReport {
        ShardReport {
            shard: ShardId(shard),
            epoch: Epoch(1),
            serving: Serving::Replica,
            position: Position { epoch: Epoch(1), number: 7 },
            is_whole: true,
            lag_bytes,
            seeding,
        }
    }

    #[test]
    fn each_copy_is_shown_as_far_as_this_server_knows_it() {
        let (known, now) = (copied(), Instant::now());
        let shard = &known.map.shards[&ShardId(1)];
        let nothing = shard_json(&known, &CopiesSeen::default(), ShardId(1), shard);
        assert_eq!((&nothing["wanted_copies"], &nothing["unprotected"]), (&json!(3), &json!(false)));
        let copies = nothing["copies"].as_array().unwrap();
        let roles: Vec<_> = copies.iter().map(|copy| (&copy["server"], &copy["role"], &copy["in_sync"])).collect();
        assert_eq!(
            roles,
            [
                (&json!("a"), &json!("primary"), &json!(true)),
                (&json!("b"), &json!("replica"), &json!(true)),
                (&json!("c"), &json!("replica"), &json!(false))
            ]
        );
        assert!(copies.iter().all(|copy| copy["lag_bytes"].is_null() && copy["serves"].is_null()), "{nothing}");
        // This server leads, and nobody has said anything.
        assert!(copies.iter().all(|copy| copy["silent"] == true), "{nothing}");

        // The primary is here, and this server leads.
        let mut seen = CopiesSeen::default();
        let facts = Facts {
            epoch: Epoch(1),
            is_serving: true,
            lag_bytes: [(MemberId(2), Some(40)), (MemberId(3), None)].into(),
            ..Facts::default()
        };
        seen.own.insert(ShardId(1), facts);
        let began = now.checked_sub(Duration::from_secs(10)).unwrap();
        for (member, report, since) in
            [(2, report(1, 30, None), None), (3, report(1, 90, Some((600, 900))), Some((began, 100)))]
        {
            let said = Reported { member: MemberId(member), report, at: now, seeding_since: since };
            seen.reported.insert((ShardId(1), MemberId(member)), said);
        }
        let shown = shard_json(&known, &seen, ShardId(1), shard);
        let copies = &shown["copies"];
        assert_eq!((&copies[0]["serves"], &copies[1]["serves"]), (&json!(true), &json!(false)));
        // What the primary counts is newer than what the leader was sent.
        assert_eq!((&copies[1]["lag_bytes"], &copies[2]["lag_bytes"]), (&json!(40), &json!(90)));
        assert_eq!(copies[2]["seeding"], json!({ "bytes": 600, "of_bytes": 900, "seconds_left": 6 }));
        assert!(copies[0]["lag_bytes"].is_null() && copies[0]["silent"] == false, "{copies}");
        let follower = Known { leader: Some(MemberId(2)), ..known.clone() };
        assert!(shard_json(&follower, &seen, ShardId(1), shard)["copies"][1]["silent"].is_null());
        assert_eq!(copies[1]["position"], json!({ "epoch": 1, "number": 7 }));
        let under_way = under_way(&known, &seen);
        let first = under_way.iter().find(|of| of["shard"] == 1).unwrap();
        assert_eq!((&first["adding"], &first["leaving"]), (&json!(["c"]), &json!([])));
        assert_eq!(first["seeding"]["bytes"], 600);
    }

    #[test]
    fn a_shard_with_one_copy_in_sync_is_unprotected_where_more_are_wanted() {
        let known = copied();
        let map = &known.map;
        let unprotected: Vec<u32> =
            map.shards.iter().filter(|(_, shard)| is_unprotected(map, shard)).map(|(id, _)| id.0).collect();
        assert_eq!(unprotected, [2, 3, 4, 5, 6]);
        let all = replication_json(map);
        assert_eq!((&all["unprotected_shards"], &all["incomplete_shards"]), (&json!(5), &json!(6)));
        assert_eq!((&all["copies"], &all["level"]), (&json!(3), &json!("quorum")));
        // One copy that is to be one is what was asked for.
        let plain = federation(&["a", "b", "c"]);
        assert_eq!(replication_json(&plain.map)["unprotected_shards"], 0);
        assert_eq!(lines(&plain, &CopiesSeen::default()), []);
    }

    #[test]
    fn force_is_refused_with_what_to_do_instead() {
        let known = copied();
        let shard = &known.map.shards[&ShardId(1)];
        let [a, c] = ["a", "c"].map(|name| named(&known.map, name).unwrap());
        let already = refusal(&known.map, ShardId(1), shard, a, &["b".into()]);
        assert!(already.contains("a is the primary of shard 1 already"), "{already}");
        let said = refusal(&known.map, ShardId(1), shard, c, &["a".into(), "b".into()]);
        for part in ["nothing was changed", "a, b may have acknowledged writes that c lacks", "SWITCHOVER", "FORCE"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let lost = with(&known, Entry::SetPrimary { shard: ShardId(1), epoch: Epoch(1), primary: None });
        let said = refusal(&lost.map, ShardId(1), &lost.map.shards[&ShardId(1)], c, &["a".into(), "b".into()]);
        assert!(said.contains("start their servers") && !said.contains("SWITCHOVER"), "{said}");
    }

    #[test]
    fn what_has_no_copies_is_neither_switched_over_nor_forced() {
        let (known, handle) = (copied(), CopiesHandle::default());
        let ask = |known: &Known, shard: u32, server: &str| {
            switch_over(&handle, known, ShardId(shard), named(&known.map, server).unwrap()).unwrap_err()
        };
        assert!(ask(&known, 9, "b").contains("there is no shard 9 among the 6 shards"), "{}", ask(&known, 9, "b"));
        assert!(ask(&known, 2, "c").contains("c has no copy of shard 2"), "{}", ask(&known, 2, "c"));
        assert!(ask(&known, 1, "b").contains("drives no copies yet"));
        let plain = federation(&["a", "b", "c"]);
        assert!(ask(&plain, 1, "b").contains("replication.copies 2"), "{}", ask(&plain, 1, "b"));
    }

    #[test]
    fn a_failover_is_asked_of_a_replica() {
        let known = copied();
        let at = |member| Known { member: MemberId(member), ..known.clone() };
        let refused = |member, force| fail_over(&CopiesHandle::default(), &at(member), force).unwrap_err();
        assert_eq!(refused(1, false), "You should send CLUSTER FAILOVER to a replica");
        assert!(refused(2, false).contains("drives no copies yet"));
        assert_eq!(replicas_of(&at(3), MemberId(3)).len(), 1);
    }

    #[test]
    fn a_repair_is_whole_once_every_copy_is_compared_and_all_that_differed_is_replaced() {
        use ecotone_replication::Differing;
        let known = copied();
        let map = &known.map;
        let differing =
            Differing { file: "000012.sst".into(), what: "a bit".into(), from: Some(MemberId(2)), left: None };
        let repair =
            Repair { phase: Phase::Done, differing: 1, replaced: 1, named: vec![differing], ..Repair::default() };
        let shown = repair_json(map, MemberId(1), &Ok(repair));
        assert_eq!(
            (&shown["server"], &shown["phase"], &shown["named"][0]["from"]),
            (&json!("a"), &json!("done"), &json!("b"))
        );
        assert_eq!((&shown["named"][0]["replaced"], &shown["named"][0]["why_not"]), (&json!(true), &Value::Null));
        let silent = repair_json(map, MemberId(3), &Err("it does not answer".into()));
        assert_eq!((&silent["phase"], &silent["trouble"]), (&json!("unknown"), &json!("it does not answer")));
        let refused =
            |shard, only| super::repair(&CopiesHandle::default(), &known, ShardId(shard), only, true).unwrap_err();
        assert!(refused(9, None).contains("there is no shard 9"));
        assert!(refused(2, Some(MemberId(3))).contains("c has no copy of shard 2; there are copies on: "));
        assert!(refused(1, None).contains("drives no copies yet"));
    }

    #[test]
    fn info_has_the_worst_of_what_is_here() {
        let known = Known { member: MemberId(3), ..copied() };
        let mut seen = CopiesSeen::default();
        let behind = |bytes, us| Facts { staleness: Some(Staleness { bytes, us }), ..Facts::default() };
        seen.own
            .insert(ShardId(1), Facts { seeding: Some((5, 9)), trouble: Some("no\nspace".into()), ..behind(9, 2_500) });
        seen.own.insert(ShardId(3), behind(4, 7_900));
        let lines = lines(&known, &seen);
        let line =
            |name: &str| lines.iter().find(|line| line.0 == format!("copies_{name}")).map(|line| line.1.as_str());
        assert_eq!((line("here"), line("here_in_sync")), (Some("2"), Some("1")));
        assert_eq!((line("max_lag_bytes"), line("max_lag_ms")), (Some("9"), Some("7")));
        assert_eq!((line("seeding_bytes"), line("seeding_of_bytes")), (Some("5"), Some("9")));
        assert_eq!((line("shards_unprotected"), line("trouble")), (Some("5"), Some("shard 1: no space")));
    }
}
