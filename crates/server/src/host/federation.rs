//! What clients ask of the federation (`FEDERATION`), and the section `Cluster` of INFO beside what
//! Redis has there.
//!
//! What is refused here is refused before anybody is asked: it says more than the log's answer can.
//! Whatever changes meanwhile, the log decides.
//!
//! Threads: any; a change blocks for at most ten seconds, until it is decided or not.

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ecotone_cluster::Federation;
use ecotone_control::dealing::{MAX_SHARDS_PER_SERVER, deal, holders, moves};
use ecotone_control::entry::Entry;
use ecotone_control::ids::{MemberId, ShardId};
use ecotone_control::map::{MAX_SETTING_NAME_BYTES, MAX_SETTING_VALUE_BYTES, MAX_SHARDS, Map, Role, ServerState};
use ecotone_control::settings::{self, Replication};
use ecotone_identity::token::TOKEN_LIFETIME_S;
use ecotone_identity::{Clock, SystemClock};
use ecotone_membership::{Decision, Known, Membership};
use ecotone_replication::is_replicated;
use ecotone_resp::federation::FederationRequest;
use serde_json::{Value, json};

use super::copies::{self, CopiesHandle, CopiesSeen};
use super::named::{counted, name_of, named, server_json};

/// How long to wait for a sign that a server runs.
const MAX_CONNECT_TIME: Duration = Duration::from_millis(500);
/// What is said where there is no federation.
const ALONE: &str = "this server has no identity: for its clients it is alone, with all slots. To make a federation of it stop it and run \
                     `ecotone cluster init --dir DIR`: what it stores becomes shard 1. To have it join one, start it with an empty folder \
                     and --join HOST:PORT --token TOKEN";

/// Does what is asked.
///
/// # Errors
///
/// Why not, and what to do.
pub(super) fn answer(
    federation: &Federation,
    handle: &CopiesHandle,
    request: &FederationRequest,
) -> Result<Vec<u8>, String> {
    let membership = federation.membership().ok_or(ALONE)?;
    let known = membership.known();
    let map = &known.map;
    let answer = match request {
        FederationRequest::Export => return Ok(map.encode()),
        FederationRequest::Status => {
            status(&known, &CopiesSeen::of(handle), federation.statistics().certificate_expiry_s)
        }
        FederationRequest::Rebalance => plan(&known, &CopiesSeen::of(handle)),
        FederationRequest::Token => {
            let token = membership.issue_token().map_err(|error| error.to_string())?;
            json!({ "token": token.to_string(), "ends_unix": SystemClock.now().plus(TOKEN_LIFETIME_S).0 })
        }
        FederationRequest::Create { shards, copies, level } => {
            let wanted =
                [("replication.copies", copies.map(|copies| copies.to_string())), ("replication.level", level.clone())];
            create(membership, map, *shards, &wanted)?
        }
        FederationRequest::Drain { server, drain } => {
            let (member, _) = named(map, server)?;
            let decided = propose(membership, Entry::Drain { member, drain: *drain })?;
            drained(map, member, *drain, &decided)
        }
        FederationRequest::Remove { server, force } => {
            let (member, _) = named(map, server)?;
            let removed = server_json(map, member);
            let decided = propose(membership, Entry::Remove { member, force: *force })?;
            json!({ "removed": removed, "decided": decided })
        }
        FederationRequest::Move { shard, to } => move_shard(membership, &known, ShardId(*shard), to)?,
        FederationRequest::SwitchOver { shard, to } => {
            copies::switch_over(handle, &known, ShardId(*shard), named(map, to)?)?
        }
        FederationRequest::Promote { shard, to, force } => {
            copies::promote(handle, &known, ShardId(*shard), named(map, to)?, *force)?
        }
        FederationRequest::Repair { shard, server, begin } => {
            let only = server.as_ref().map(|server| named(map, server)).transpose()?.map(|(member, _)| member);
            copies::repair(handle, &known, ShardId(*shard), only, *begin)?
        }
        FederationRequest::Get { name } => settings_of(map, name.as_deref())?,
        FederationRequest::Set { name, value } => set(membership, name, value.as_ref())?,
    };
    Ok(answer.to_string().into_bytes())
}

/// All settings that are in force, or one; and which of them are not the defaults.
fn settings_of(map: &Map, name: Option<&str>) -> Result<Value, String> {
    let mut in_force = copies::settings_in_force(map);
    if let Some(name) = name {
        let names: Vec<String> = in_force.keys().cloned().collect();
        in_force.retain(|known, _| known == name);
        if in_force.is_empty() {
            return Err(format!("the federation has no setting {name:?}: there are {}", names.join(", ")));
        }
    }
    let set: Vec<&String> = map.settings.keys().filter(|set| in_force.contains_key(*set)).collect();
    Ok(json!({ "settings": in_force, "set": set }))
}

fn check_setting(name: &str, value: Option<&String>) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_SETTING_NAME_BYTES {
        return Err(format!("the name of a setting has 1 to {MAX_SETTING_NAME_BYTES} bytes"));
    }
    let Some(value) = value else { return Ok(()) };
    if value.len() > MAX_SETTING_VALUE_BYTES {
        return Err(format!("the value of a setting has at most {MAX_SETTING_VALUE_BYTES} bytes"));
    }
    let checked = settings::check(name, value).and_then(|()| settings::check_power(name, value));
    checked.map_err(|should| format!("{name} should be {should}, not {value:?}"))
}

fn set(membership: &Membership, name: &str, value: Option<&String>) -> Result<Value, String> {
    check_setting(name, value)?;
    let decided = propose(membership, Entry::Set { name: name.to_owned(), value: value.cloned() })?;
    Ok(json!({ "setting": name, "value": value, "decided": decided }))
}

/// What a server still has once it is drained, and what becomes of it.
fn drained(map: &Map, member: MemberId, drain: bool, decided: &Value) -> Value {
    let left: Vec<u32> =
        map.shards.iter().filter(|(_, shard)| shard.copies.contains(&member)).map(|(id, _)| id.0).collect();
    let others = holders(map).into_iter().filter(|holder| *holder != member).count();
    json!({
        "server": server_json(map, member),
        "draining": drain,
        "shards": left,
        "leave_by_themselves": copies::leaving_by_itself(map, member),
        "wanted_copies": Replication::of(map).copies,
        "other_servers": others,
        "decided": decided,
    })
}

/// Has a change decided: what became of it.
fn propose(membership: &Membership, entry: Entry) -> Result<Value, String> {
    let decided = membership.propose(entry).map_err(|error| error.to_string())?;
    let outcome = match decided.decision {
        Decision::Changed | Decision::Joined(_) => "changed",
        Decision::Unchanged => "unchanged",
        Decision::Outdated => {
            return Err("the shard was changed meanwhile: look at FEDERATION STATUS, and ask again".into());
        }
    };
    Ok(json!({ "outcome": outcome, "index": decided.index }))
}

/// All slots, once; and before that the settings of their copies, so that no shard is served without.
fn create(
    membership: &Membership,
    map: &Map,
    shards: Option<u32>,
    wanted: &[(&str, Option<String>)],
) -> Result<Value, String> {
    if !map.shards.is_empty() {
        let owners: Vec<String> = owned(map)
            .iter()
            .map(|(member, owned)| format!("{} on {}", counted(*owned), name_of(map, *member)))
            .collect();
        return Err(format!(
            "slots are dealt already ({}): the number of shards stays; shards move by `ecotone cluster move`, and `ecotone cluster \
             rebalance` says which; how many copies each has is a setting, `ecotone cluster set HOST:PORT replication.copies N`",
            owners.join(", ")
        ));
    }
    let holders = holders(map);
    if holders.is_empty() {
        return Err("no server can hold a shard: all are witnesses, drained, or have not started yet; let one join (FEDERATION TOKEN)".into());
    }
    let shards = shards.map_or(holders.len(), |shards| shards as usize);
    let most = (holders.len() * MAX_SHARDS_PER_SERVER).min(MAX_SHARDS);
    if !(1..=most).contains(&shards) {
        return Err(format!(
            "a server is dealt {MAX_SHARDS_PER_SERVER} shards at most, and {} can hold some: say 1 to {most}, not {shards}",
            holders.len()
        ));
    }
    wanted.iter().try_for_each(|(name, value)| check_setting(name, value.as_ref()))?;
    for (name, value) in wanted.iter().filter(|(_, value)| value.is_some()) {
        set(membership, name, value.as_ref())?;
    }
    let primaries = deal(map, shards);
    let decided = propose(membership, Entry::Deal { primaries })?;
    let known = membership.known();
    let copies = Replication::of(&known.map).copies;
    let nothing = CopiesSeen::default();
    let shards = known.map.shards.iter().map(|(id, shard)| copies::shard_json(&known, &nothing, *id, shard));
    Ok(json!({
        "shards": shards.collect::<Vec<_>>(),
        "wanted_copies": copies,
        // Copies come to them when others have joined.
        "missing_servers": copies.saturating_sub(holders.len()),
        "decided": decided,
    }))
}

/// How many shards each server is the primary of.
fn owned(map: &Map) -> BTreeMap<MemberId, usize> {
    let mut owned = BTreeMap::new();
    for primary in map.shards.values().filter_map(|shard| shard.primary) {
        *owned.entry(primary).or_default() += 1;
    }
    owned
}

/// Whether anybody listens there.
fn answers(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.take(1).any(|address| TcpStream::connect_timeout(&address, MAX_CONNECT_TIME).is_ok())
}

/// What moves by itself, and what should be moved by hand.
fn plan(known: &Known, seen: &CopiesSeen) -> Value {
    let map = &known.map;
    let is_by_hand = |id: ShardId| map.shards.get(&id).is_some_and(|shard| !is_replicated(map, shard));
    let moves: Vec<Value> = moves(map)
        .into_iter()
        .filter(|shard_move| is_by_hand(shard_move.shard))
        .map(|shard_move| {
            json!({
                "shard": shard_move.shard.0,
                "from": shard_move.from.map(|from| name_of(map, from)),
                "to": name_of(map, shard_move.to),
            })
        })
        .collect();
    // Shards of servers that are drained, or gone, while nobody else can hold any.
    let is_stuck = holders(map).is_empty();
    let stuck = map.shards.iter().filter(|_| is_stuck).map(|(id, _)| id.0);
    json!({
        "moves": moves,
        "moved": 0,
        "under_way": copies::under_way(known, seen),
        "without_destination": stuck.collect::<Vec<_>>(),
        "note": "shards with copies move by themselves; one with one copy is moved by hand while its server is stopped (FEDERATION MOVE)",
    })
}

fn move_shard(membership: &Membership, known: &Known, id: ShardId, to: &str) -> Result<Value, String> {
    let map = &known.map;
    let shard = map.shards.get(&id).ok_or_else(|| match map.shards.len() {
        0 => "no slots are dealt yet, so there are no shards: FEDERATION CREATE deals them".to_owned(),
        count => format!("there is no {id} among the {}: see FEDERATION STATUS", counted(count)),
    })?;
    let (member, _) = named(map, to)?;
    if is_replicated(map, shard) {
        return Err(format!(
            "{id} has copies, or is to have some: it moves by itself where the map asks for it (FEDERATION REBALANCE), and FEDERATION \
             SWITCHOVER hands it over to another copy now"
        ));
    }
    if shard.primary == Some(known.member) && member != known.member {
        return Err(format!(
            "{id} is served by this server, which runs: a shard is moved while its server is stopped. Stop this one, copy the shard's \
             store to {to}, and state the move at another server"
        ));
    }
    let source = shard.primary.filter(|primary| *primary != member).and_then(|primary| map.server(primary));
    if let Some(source) = source.filter(|source| answers(&source.addresses.peers)) {
        return Err(format!(
            "{id} is served by {}, which answers at {}: a shard is moved while its server is stopped. Stop it, copy the shard's store to \
             {to}, and state the move again",
            source.name, source.addresses.peers
        ));
    }
    let from = shard.primary.map(|primary| server_json(map, primary));
    let decided = if shard.primary == Some(member) {
        json!({ "outcome": "unchanged", "index": known.applied })
    } else {
        propose(membership, Entry::Move { shard: id, epoch: shard.epoch, to: member })?
    };
    Ok(json!({ "shard": id.0, "from": from, "to": server_json(map, member), "decided": decided }))
}

pub(crate) const STATES: [(ServerState, &str); 3] =
    [(ServerState::Joining, "joining"), (ServerState::Active, "active"), (ServerState::Draining, "draining")];

fn state_name(state: ServerState) -> &'static str {
    STATES.iter().find(|(known, _)| *known == state).map_or("removed", |(_, name)| name)
}

/// How the federation is, as far as this server knows.
fn status(known: &Known, seen: &CopiesSeen, certificate_expiry_s: Option<u64>) -> Value {
    let map = &known.map;
    let owned = owned(map);
    let copies_on = |member: MemberId| map.shards.values().filter(|shard| shard.copies.contains(&member)).count();
    let servers: Vec<Value> = map
        .members()
        .map(|(member, server)| {
            json!({
                "member": member.0,
                "name": server.name.as_str(),
                "state": state_name(server.state),
                "role": if server.role == Role::Witness { "witness" } else { "data" },
                "zone": server.zone,
                "peers": server.addresses.peers,
                "clients": server.addresses.clients,
                "self": member == known.member,
                "leads": known.leader == Some(member),
                "votes": known.voters.contains(&member),
                // Only the leader knows.
                "silent": known.leads().then(|| known.gone.contains(&member)),
                "shards": owned.get(&member).copied().unwrap_or(0),
                "copies": copies_on(member),
                "features": [server.features.min, server.features.max],
            })
        })
        .collect();
    json!({
        "federation": map.federation.to_string(),
        "generation": map.generation,
        "asked": server_json(map, known.member),
        "is_removed": known.is_removed(),
        "leader": known.leader.map(|leader| server_json(map, leader)),
        "term": known.term,
        "voters": known.voters.iter().map(|voter| name_of(map, *voter)).collect::<Vec<_>>(),
        "applied": known.applied,
        "map_version": map.version,
        "feature_level": map.feature_level,
        "stopped": known.stopped,
        "certificate_expiry_seconds": certificate_expiry_s,
        "servers": servers,
        "shards": map.shards.iter().map(|(id, shard)| copies::shard_json(known, seen, *id, shard)).collect::<Vec<_>>(),
        "replication": copies::replication_json(map),
        "settings": map.settings,
    })
}

/// How many servers are in each of [`STATES`].
pub(crate) fn servers_by_state(map: &Map) -> [(&'static str, usize); 3] {
    STATES.map(|(state, name)| (name, map.members().filter(|(_, server)| server.state == state).count()))
}

/// Lines of INFO's section `Cluster`.
pub(super) fn lines(federation: &Federation, handle: &CopiesHandle) -> Vec<(String, String)> {
    let Some(membership) = federation.membership() else { return Vec::new() };
    let known = membership.known();
    let mut lines = lines_of(&known, federation.statistics().certificate_expiry_s);
    lines.push(("control_keeps_authority".into(), u8::from(membership.keeps_authority()).to_string()));
    let other = membership.other_history().map(|other| name_of(&known.map, other));
    lines.extend(other.map(|other| ("control_other_history".into(), other)));
    lines.extend(copies::lines(&known, &CopiesSeen::of(handle)));
    lines
}

fn lines_of(known: &Known, certificate_expiry_s: Option<u64>) -> Vec<(String, String)> {
    let map = &known.map;
    let line = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let voters: Vec<String> = known.voters.iter().map(|voter| name_of(map, *voter)).collect();
    let leader = known.leader.map(|leader| name_of(map, leader)).unwrap_or_default();
    let without_primary = map.shards.values().filter(|shard| shard.primary.is_none()).count();
    let mut lines = vec![
        line("control_federation", &map.federation),
        line("control_generation", &map.generation),
        line("control_server", &name_of(map, known.member)),
        line("control_server_number", &known.member.0),
        line("control_leader", &leader),
        line("control_is_leader", &u8::from(known.leads())),
        line("control_term", &known.term),
        line("control_voters", &voters.join(",")),
        line("control_map_version", &map.version),
        line("control_applied_index", &known.applied),
        line("control_feature_level", &map.feature_level),
    ];
    lines.extend(servers_by_state(map).map(|(name, count)| line(&format!("control_servers_{name}"), &count)));
    lines.extend([
        line("control_shards", &map.shards.len()),
        line("control_shards_owned", &owned(map).get(&known.member).copied().unwrap_or(0)),
        line("control_shards_without_primary", &without_primary),
    ]);
    lines.extend(certificate_expiry_s.map(|end| line("control_certificate_expiry_seconds", &end)));
    lines.extend(known.stopped.as_ref().map(|why| line("control_stopped", why)));
    lines
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use ecotone_control::entry::{NewServer, Proposal};
    use ecotone_control::ids::{DirectoryId, FederationId, KeyHash, TokenId};
    use ecotone_control::machine::{Machine, Outcome, RULES_OF_COPIES};
    use ecotone_control::map::{Addresses, Features};
    use ecotone_types::ServerId;

    use super::*;

    fn apply(machine: &mut Machine, entry: Entry) {
        let outcome = machine.apply(machine.applied() + 1, &Proposal { by: MemberId(1), entry });
        assert!(matches!(outcome, Outcome::Changed | Outcome::Joined(_)), "{outcome:?}");
    }

    /// Servers of these names, numbered from 1, with six shards; server 1 leads and asks.
    pub(crate) fn federation(names: &[&str]) -> Known {
        // At this level all servers know what copies are.
        let map = Map { feature_level: RULES_OF_COPIES, ..Map::new(FederationId([7; 8])) };
        let mut machine = Machine::new(map, 0);
        for (number, name) in (1_u8..).zip(names) {
            let (directory, features) = (DirectoryId([number; 16]), Features { min: 1, max: RULES_OF_COPIES });
            let server = NewServer {
                directory,
                name: ServerId::new(*name).unwrap(),
                addresses: Addresses { peers: format!("10.0.0.{number}:7411"), clients: String::new() },
                zone: String::new(),
                role: Role::Data,
                features,
            };
            let (member, addresses) = (MemberId(number.into()), server.addresses.clone());
            apply(
                &mut machine,
                match number {
                    1 => Entry::Found { server, authority: None, with_shard: false },
                    _ => Entry::Join {
                        token: TokenId([number; 16]),
                        token_expires_s: 9,
                        key: KeyHash([number; 32]),
                        server,
                    },
                },
            );
            if number > 1 {
                apply(&mut machine, Entry::Announce { member, directory, addresses, zone: String::new(), features });
            }
        }
        let primaries = deal(machine.map(), 6);
        apply(&mut machine, Entry::Deal { primaries });
        Known {
            map: Arc::new(machine.map().clone()),
            member: MemberId(1),
            leader: Some(MemberId(1)),
            term: 3,
            voters: BTreeSet::from([MemberId(1)]),
            gone: BTreeSet::from([MemberId(2)]),
            applied: machine.applied(),
            stopped: None,
            told_removed: false,
        }
    }

    pub(in crate::host) fn with(known: &Known, entry: Entry) -> Known {
        let mut machine = Machine::new(Map::clone(&known.map), known.applied);
        apply(&mut machine, entry);
        Known { map: Arc::new(machine.map().clone()), applied: machine.applied(), ..known.clone() }
    }

    #[test]
    fn a_server_is_found_by_its_name_before_its_number() {
        let known = federation(&["a", "3", "c"]);
        let found = |server| named(&known.map, server).map(|(member, _)| member.0);
        assert_eq!((found("c"), found("1"), found("3")), (Ok(3), Ok(1), Ok(2)));
        let unknown = found("d").unwrap_err();
        assert!(unknown.contains("\"d\"") && unknown.contains("a, 3, c"), "{unknown}");
        let known = federation(&["a", "b", "c"]);
        let removed = with(&known, Entry::Remove { member: MemberId(3), force: true });
        // Its number is known for ever, also when the map has forgotten the rest.
        for known in [&removed, &with(&removed, Entry::Prune { now_s: 1 })] {
            let found = |server| named(&known.map, server).map(|(member, _)| member.0).unwrap_err();
            assert!(found("3").contains("removed from this federation already"), "{}", found("3"));
            assert!(found("c").ends_with("there are a, b"), "{}", found("c"));
        }
    }

    #[test]
    fn a_status_tells_what_only_the_leader_knows_by_the_leader_only() {
        let known = federation(&["a", "b", "c"]);
        let led = status(&known, &CopiesSeen::default(), Some(99));
        let servers = led["servers"].as_array().unwrap();
        assert_eq!(
            servers.iter().map(|server| server["silent"].as_bool()).collect::<Vec<_>>(),
            [Some(false), Some(true), Some(false)]
        );
        assert!(servers.iter().all(|server| server["shards"] == 2), "{led}");
        assert_eq!((&led["leader"]["name"], &led["certificate_expiry_seconds"]), (&"a".into(), &99.into()));
        let follower = status(&Known { leader: None, ..known.clone() }, &CopiesSeen::default(), None);
        assert!(follower["leader"].is_null() && follower["servers"][1]["silent"].is_null(), "{follower}");
        let lines = lines_of(&Known { leader: None, stopped: Some("why".into()), ..known.clone() }, None);
        let line = |name: &str| lines.iter().find(|line| line.0 == name).map(|line| line.1.as_str());
        assert_eq!((line("control_leader"), line("control_stopped")), (Some(""), Some("why")));
        assert_eq!((line("control_shards_owned"), line("control_servers_active")), (Some("2"), Some("3")));
        // A shard that nobody serves is counted, and its plan has no server that it comes from.
        let lost = with(&known, Entry::Remove { member: MemberId(3), force: true });
        let lines = lines_of(&lost, None);
        assert!(lines.contains(&("control_shards_without_primary".into(), "2".into())), "{lines:?}");
        let plan = plan(&lost, &CopiesSeen::default());
        assert!(plan["moves"].as_array().unwrap().iter().all(|shard| shard["from"].is_null()), "{plan}");
        assert_eq!((plan["moves"].as_array().unwrap().len(), &plan["moved"]), (2, &0.into()));
    }

    #[test]
    fn shards_that_nobody_can_take_are_not_passed_over() {
        let known = federation(&["a"]);
        assert_eq!(plan(&known, &CopiesSeen::default())["without_destination"], json!([]));
        let drained = plan(&with(&known, Entry::Drain { member: MemberId(1), drain: true }), &CopiesSeen::default());
        assert_eq!((&drained["moves"], &drained["without_destination"]), (&json!([]), &json!([1, 2, 3, 4, 5, 6])));
    }

    #[test]
    fn settings_are_shown_as_they_are_in_force_and_refused_with_what_they_should_be() {
        let known = federation(&["a", "b"]);
        let all = settings_of(&known.map, None).unwrap();
        assert_eq!((&all["settings"]["replication.level"], &all["set"]), (&json!("one"), &json!([])));
        let known = with(&known, Entry::Set { name: "replication.copies".into(), value: Some("2".into()) });
        let one = |name| settings_of(&known.map, Some(name));
        assert_eq!(
            one("replication.copies"),
            Ok(json!({ "settings": { "replication.copies": "2" }, "set": ["replication.copies"] }))
        );
        // What follows from another setting is in force, and was not set.
        assert_eq!(one("replication.level"), Ok(json!({ "settings": { "replication.level": "quorum" }, "set": [] })));
        assert!(one("replication.max_staleness_ms").unwrap()["settings"]["replication.max_staleness_ms"].is_null());
        let unknown = one("copies").unwrap_err();
        assert!(unknown.contains("\"copies\"") && unknown.contains("replication.copies, "), "{unknown}");
        for (name, value) in [
            ("replication.copies", "0"),
            ("replication.level", "most"),
            ("replication.cpoies", "3"),
            ("power.mode", "fast"),
            ("power.cap_watts", "0"),
            ("power.cap", "3"),
        ] {
            let refused = check_setting(name, Some(&value.to_owned())).unwrap_err();
            assert!(refused.starts_with(&format!("{name} should be ")), "{refused}");
        }
        assert_eq!(check_setting("site.owner", Some(&"x".to_owned())), Ok(()));
    }

    #[test]
    fn what_is_drained_is_left_by_shards_that_have_copies() {
        let known = federation(&["a", "b"]);
        let decided = json!({ "outcome": "changed", "index": 9 });
        let by_hand = drained(&known.map, MemberId(2), true, &decided);
        assert_eq!((&by_hand["shards"], &by_hand["leave_by_themselves"]), (&json!([2, 4, 6]), &json!([])));
        let copied = with(&known, Entry::Set { name: "replication.copies".into(), value: Some("2".into()) });
        let leave = drained(&copied.map, MemberId(2), true, &decided);
        assert_eq!((&leave["leave_by_themselves"], &leave["other_servers"]), (&json!([2, 4, 6]), &json!(1)));
        // They do not have to be moved by hand, also where they cannot go yet.
        let drained = with(&copied, Entry::Drain { member: MemberId(2), drain: true });
        let plan = plan(&drained, &CopiesSeen::default());
        assert_eq!(plan["moves"], json!([]));
        let leaving: Vec<&Value> =
            plan["under_way"].as_array().unwrap().iter().filter(|of| of["leaving"] == json!(["b"])).collect();
        assert_eq!(leaving.len(), 3, "{plan}");
    }
}
