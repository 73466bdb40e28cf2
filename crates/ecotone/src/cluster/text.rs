//! What a server answers to `FEDERATION`, for people. It is not trusted: what is missing or odd is
//! left out, and control characters cannot steer the terminal.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::backup::human;
use crate::output::line;

fn word(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    text.chars().filter(|character| !character.is_control()).collect()
}

fn or_none(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> String {
    list(value).map(word).collect::<Vec<_>>().join(", ")
}

fn ranges(slots: &Value) -> String {
    let range = |range: &Value| {
        let (first, last) = (word(&range[0]), word(&range[1]));
        if first == last { first } else { format!("{first}-{last}") }
    };
    or_none(list(slots).map(range).collect::<Vec<_>>().join(","))
}

/// Columns as wide as what is in them.
fn table(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line!(text, "  {}", cells.join("  ").trim_end());
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// How long from now on, roughly.
fn until(end_s: u64) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match end_s.checked_sub(now_s) {
        None => "has ended".into(),
        Some(left_s) => format!("ends in {} h {} min", left_s / 3600, left_s % 3600 / 60),
    }
}

pub(super) fn status(status: &Value) -> String {
    let mut text = String::new();
    line!(
        text,
        "federation {}, generation {}, as {} knows it",
        word(&status["federation"]),
        word(&status["generation"]),
        word(&status["asked"]["name"])
    );
    match &status["leader"] {
        Value::Null => {
            line!(text, "nobody leads, as far as it knows: nothing can be changed now (term {})", word(&status["term"]))
        }
        leader => line!(
            text,
            "{} leads in term {}; voters: {}",
            word(&leader["name"]),
            word(&status["term"]),
            words(&status["voters"])
        ),
    }
    let certificate = status["certificate_expiry_seconds"].as_u64();
    line!(
        text,
        "map version {}, applied up to {}, feature level {}{}",
        word(&status["map_version"]),
        word(&status["applied"]),
        word(&status["feature_level"]),
        certificate.map(|end_s| format!("; its certificate {}", until(end_s))).unwrap_or_default()
    );
    if let Value::String(_) = status["stopped"] {
        line!(text, "ITS CONTROL PLANE HAS STOPPED: {}; start the server anew", word(&status["stopped"]));
    }
    if status["is_removed"] == Value::Bool(true) {
        line!(text, "IT WAS REMOVED from the federation: ask another server");
    }
    let mut rows = vec![row([
        "server",
        "name",
        "state",
        "role",
        "zone",
        "vote",
        "shards",
        "copies",
        "servers reach it at",
        "clients",
    ])];
    for server in list(&status["servers"]) {
        let is = |what: &str| server[what] == Value::Bool(true);
        let vote = match (is("leads"), is("votes")) {
            (true, _) => "leads",
            (false, true) => "votes",
            (false, false) => "-",
        };
        let state = word(&server["state"]) + if is("silent") { ", silent" } else { "" };
        let cell = |what: &str| or_none(word(&server[what]));
        rows.push(row([
            &cell("member"),
            &cell("name"),
            &state,
            &cell("role"),
            &cell("zone"),
            vote,
            &cell("shards"),
            &cell("copies"),
            &cell("peers"),
            &cell("clients"),
        ]));
    }
    line!(text, "");
    table(&mut text, &rows);
    line!(text, "");
    shards(&mut text, &status["shards"]);
    replication(&mut text, status);
    let settings = status["settings"].as_object().into_iter().flatten();
    settings.for_each(|(name, value)| line!(text, "setting {name} = {}", word(value)));
    text
}

fn shards(text: &mut String, shards: &Value) {
    if list(shards).next().is_none() {
        line!(text, "no slots are dealt yet: ecotone cluster create HOST:PORT");
        return;
    }
    let mut rows = vec![row(["shard", "slots", "server", "epoch", "replicas"])];
    for shard in list(shards) {
        let primary = match word(&shard["primary"]) {
            none if none.is_empty() && list(&shard["copies"]).any(|copy| copy["in_sync"] == Value::Bool(true)) => {
                "nobody yet: another copy is being chosen".into()
            }
            none if none.is_empty() => "nobody: its server was removed by force".into(),
            primary => primary,
        };
        let replicas: Vec<String> =
            list(&shard["copies"]).filter(|copy| copy["role"] == "replica").map(replica).collect();
        rows.push(row([
            &word(&shard["shard"]),
            &ranges(&shard["slots"]),
            &primary,
            &word(&shard["epoch"]),
            &or_none(replicas.join("; ")),
        ]));
    }
    table(text, &rows);
}

/// A copy that is not the primary, in a few words.
fn replica(copy: &Value) -> String {
    let name = word(&copy["server"]);
    let seeding = &copy["seeding"];
    if let (Some(done), Some(all)) = (seeding["bytes"].as_u64(), seeding["of_bytes"].as_u64()) {
        let Some(percent) = (u128::from(done) * 100).checked_div(all.into()) else {
            return format!("{name} is being made of files that it has");
        };
        let left = seeding["seconds_left"].as_u64().map(|left_s| format!(", about {} left", seconds(left_s)));
        return format!("{name} is being made: {} % of {}{}", percent.min(100), human(all), left.unwrap_or_default());
    }
    let mut facts = Vec::new();
    if copy["in_sync"] != Value::Bool(true) {
        facts.push("not in sync".to_owned());
    }
    if copy["silent"] == Value::Bool(true) {
        facts.push("silent".to_owned());
    } else if let Some(bytes) = copy["lag_bytes"].as_u64().filter(|bytes| *bytes > 0) {
        let time = copy["lag_ms"].as_u64().map(|ms| format!(", {ms} ms")).unwrap_or_default();
        facts.push(format!("{}{time} behind", human(bytes)));
    }
    if facts.is_empty() { name } else { format!("{name} ({})", facts.join(", ")) }
}

fn seconds(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

/// What clients are promised, and where that hangs on one server.
fn replication(text: &mut String, status: &Value) {
    let of = &status["replication"];
    if of["copies"].as_u64().is_none_or(|copies| copies < 2) {
        return;
    }
    line!(
        text,
        "{} copies of each shard are wanted; writes are acknowledged at level {}",
        word(&of["copies"]),
        word(&of["level"])
    );
    for shard in list(&status["shards"]).filter(|shard| shard["unprotected"] == Value::Bool(true)) {
        let in_sync: Vec<String> = list(&shard["copies"])
            .filter(|copy| copy["in_sync"] == Value::Bool(true))
            .map(|copy| word(&copy["server"]))
            .collect();
        let only = if in_sync.is_empty() { "nobody".to_owned() } else { in_sync.join(", ") };
        line!(text, "shard {} is UNPROTECTED: only {only} has what it acknowledges", word(&shard["shard"]));
    }
    for (shard, copy) in list(&status["shards"]).flat_map(|shard| list(&shard["copies"]).map(move |copy| (shard, copy)))
    {
        if let Value::String(_) = copy["trouble"] {
            line!(text, "shard {} on {}: {}", word(&shard["shard"]), word(&copy["server"]), word(&copy["trouble"]));
        }
    }
    if status["asked"]["name"] != status["leader"]["name"] {
        line!(text, "how far copies are on other servers is known where the leader is asked");
    }
}

/// Whether it was so before.
fn already(answer: &Value) -> &'static str {
    if answer["decided"]["outcome"] == "unchanged" { " (it was so already)" } else { "" }
}

pub(super) fn created(answer: &Value) -> String {
    let count = list(&answer["shards"]).count();
    let mut text =
        format!("all slots are dealt to {count} shard{}{}\n", if count == 1 { "" } else { "s" }, already(answer));
    shards(&mut text, &answer["shards"]);
    if answer["wanted_copies"].as_u64().is_some_and(|copies| copies > 1) {
        line!(
            text,
            "each is to have {} copies, which are made now: `ecotone cluster status HOST:PORT` shows how far they are",
            word(&answer["wanted_copies"])
        );
    }
    if answer["missing_servers"].as_u64().is_some_and(|missing| missing > 0) {
        line!(
            text,
            "for so many copies {} more servers are needed: until they have joined shards have fewer",
            word(&answer["missing_servers"])
        );
    }
    text
}

pub(super) fn drained(answer: &Value) -> String {
    let name = word(&answer["server"]["name"]);
    if answer["draining"] != Value::Bool(true) {
        return format!("{name} is not drained any more{}\n", already(answer));
    }
    let leaving: Vec<&Value> = list(&answer["leave_by_themselves"]).collect();
    let by_hand: Vec<String> = list(&answer["shards"]).filter(|shard| !leaving.contains(shard)).map(word).collect();
    let mut next = String::new();
    if !leaving.is_empty() {
        line!(
            next,
            "shards {} have copies and leave it by themselves: `ecotone cluster rebalance HOST:PORT` shows how far that is",
            words(&answer["leave_by_themselves"])
        );
        let (servers, copies) = (answer["other_servers"].as_u64(), answer["wanted_copies"].as_u64());
        if servers.zip(copies).is_some_and(|(servers, copies)| servers < copies) {
            line!(
                next,
                "without it there are {} servers for {} copies: let one join (`ecotone cluster add HOST:PORT`), or ask for fewer (`ecotone \
                 cluster set HOST:PORT replication.copies {0}`)",
                word(&answer["other_servers"]),
                word(&answer["wanted_copies"])
            );
        }
    }
    if !by_hand.is_empty() {
        line!(
            next,
            "it still has and serves shards {}: `ecotone cluster rebalance HOST:PORT` says where to move them",
            by_hand.join(", ")
        );
    }
    if next.is_empty() {
        line!(
            next,
            "it has no shards: once it does not vote, remove it with `ecotone cluster remove HOST:PORT {name}`"
        );
    }
    format!("{name} is drained: it gets no more shards, and votes no longer{}\n{next}", already(answer))
}

pub(super) fn removed(answer: &Value) -> String {
    format!(
        "{} (server {}) is removed{}: within a second all that reach the leader refuse it\n",
        word(&answer["removed"]["name"]),
        word(&answer["removed"]["member"]),
        already(answer)
    )
}

pub(super) fn plan(answer: &Value) -> String {
    let stuck = words(&answer["without_destination"]);
    if !stuck.is_empty() {
        return format!(
            "no server can take shards: all are witnesses, drained, or have not started; these should leave theirs: {stuck}\nLet one \
             join (`ecotone cluster add HOST:PORT`), or take back that one is drained\n"
        );
    }
    let mut text = String::new();
    under_way(&mut text, &answer["under_way"]);
    if list(&answer["moves"]).next().is_none() {
        if text.is_empty() {
            line!(text, "every shard is where it should be: nothing to move");
        }
        return text;
    }
    line!(text, "nothing was moved; these shards should be:");
    let mut rows = vec![row(["shard", "from", "to"])];
    for shard in list(&answer["moves"]) {
        let from = match word(&shard["from"]) {
            none if none.is_empty() => "(lost with its server)".into(),
            from => from,
        };
        rows.push(row([&word(&shard["shard"]), &from, &word(&shard["to"])]));
    }
    table(&mut text, &rows);
    line!(
        text,
        "A shard with one copy is moved by hand: stop its server, copy the shard's store, and say `ecotone cluster move HOST:PORT SHARD --to NAME`"
    );
    text
}

/// What moves by itself.
fn under_way(text: &mut String, shards: &Value) {
    if list(shards).next().is_none() {
        return;
    }
    line!(text, "the leader moves these by itself:");
    let mut rows = vec![row(["shard", "is being made on", "leaves", "next"])];
    for shard in list(shards) {
        let next =
            list(&shard["next"]).map(|change| format!("{} {}", word(&change["change"]), word(&change["server"])));
        let mut adding = words(&shard["adding"]);
        if let Some(left_s) = shard["seeding"]["seconds_left"].as_u64() {
            adding.push_str(&format!(" (about {} left)", seconds(left_s)));
        }
        rows.push(row([
            &word(&shard["shard"]),
            &or_none(adding),
            &or_none(words(&shard["leaving"])),
            &or_none(next.collect::<Vec<_>>().join(", ")),
        ]));
    }
    table(text, &rows);
}

pub(super) fn switched_over(answer: &Value) -> String {
    format!(
        "shard {} is served by {} from now on{}, after {} ms: nothing was lost\n",
        word(&answer["shard"]),
        word(&answer["to"]["name"]),
        already(answer),
        word(&answer["took_ms"])
    )
}

pub(super) fn promoted(answer: &Value) -> String {
    let given_up = words(&answer["given_up"]);
    let lost = match given_up.as_str() {
        "" => "no other copy was in sync".to_owned(),
        names => format!("what only {names} had is lost; these copies are made anew from it when they come back"),
    };
    format!("{} is the primary of shard {} by force: {lost}\n", word(&answer["to"]["name"]), word(&answer["shard"]))
}

/// What a promotion by force may lose.
pub(super) fn risks(status: &Value, shard: u32, to: &str) -> String {
    let mut text = String::new();
    line!(text, "To make {to} the primary of shard {shard} by force may lose acknowledged writes:");
    let found = list(&status["shards"]).find(|of| of["shard"] == shard);
    let copies: Vec<&Value> = found.into_iter().flat_map(|of| list(&of["copies"])).collect();
    let is_it = |copy: &Value| {
        let server = list(&status["servers"]).find(|server| server["name"] == copy["server"]);
        copy["server"] == to || server.is_some_and(|server| word(&server["member"]) == to)
    };
    let in_sync = |copy: &&&Value| copy["in_sync"] == Value::Bool(true);
    let others: Vec<String> =
        copies.iter().filter(in_sync).filter(|copy| !is_it(copy)).map(|copy| word(&copy["server"])).collect();
    match copies.iter().find(|copy| is_it(copy)) {
        Some(copy) if copy["in_sync"] == Value::Bool(true) => {
            line!(
                text,
                "- it is in sync: what was acknowledged at level `all` it has, at `quorum` and `one` perhaps not"
            )
        }
        Some(copy) => {
            let behind = copy["lag_bytes"].as_u64().map(|bytes| format!(", and was {} behind", human(bytes)));
            line!(text, "- it is NOT in sync{}: it lacks writes of any level", behind.unwrap_or_default());
        }
        None => line!(text, "- it has no copy of this shard, as far as is known here"),
    }
    if !others.is_empty() {
        line!(text, "- what only {} have is lost for good, also if they come back later", others.join(", "));
    }
    if let Some(primary) = found.map(|of| word(&of["primary"])).filter(|primary| !primary.is_empty()) {
        line!(text, "- {primary} must be stopped: where it runs and reaches nobody it may go on acknowledging writes");
    }
    text
}

/// How far the copies of a shard are compared: one line, which changes in steps of a tenth.
pub(super) fn repairing(answer: &Value) -> String {
    let copy = |copy: &Value| {
        let (done, all) = (copy["bytes"].as_u64().unwrap_or(0), copy["of_bytes"].as_u64().unwrap_or(0));
        let how = match word(&copy["phase"]).as_str() {
            "comparing" => format!("{} of {}", human(done - done % (all / 10).max(1)), human(all)),
            phase => phase.to_owned(),
        };
        format!("{}: {how}", word(&copy["server"]))
    };
    format!("shard {}: {}", word(&answer["shard"]), list(&answer["copies"]).map(copy).collect::<Vec<_>>().join(", "))
}

/// What comparing the copies of a shard has come to.
pub(super) fn repaired(answer: &Value) -> String {
    let mut text = String::new();
    for copy in list(&answer["copies"]) {
        let (server, files) = (word(&copy["server"]), word(&copy["files"]));
        let bytes = human(copy["bytes"].as_u64().unwrap_or(0));
        let role = word(&copy["role"]);
        match (word(&copy["phase"]).as_str(), copy["differing"].as_u64().unwrap_or(0)) {
            ("done", 0) => line!(text, "{server} ({role}): {files} files, {bytes}: all hold what they should"),
            ("done", differing) => {
                let replaced = word(&copy["replaced"]);
                line!(
                    text,
                    "{server} ({role}): {files} files, {bytes}: {differing} differed, {replaced} were replaced"
                );
            }
            ("failed", _) => line!(text, "{server} ({role}): not all was compared: {}", word(&copy["trouble"])),
            _ => line!(text, "{server}: nothing is known of it: {}", word(&copy["trouble"])),
        }
        for differing in list(&copy["named"]) {
            let became = match (word(&differing["why_not"]), word(&differing["from"])) {
                (why, _) if !why.is_empty() => format!("NOT replaced: {why}"),
                (_, from) if !from.is_empty() => format!("replaced by {from}'s"),
                _ => "its copy was built anew".into(),
            };
            line!(text, "  {}: {}; {became}", word(&differing["file"]), word(&differing["what"]));
        }
        let to = word(&copy["handed_over_to"]);
        if !to.is_empty() {
            line!(text, "  the shard was handed over to {to}, so that this could be replaced; nothing was lost");
        }
    }
    text
}

/// What to do about copies that are not whole.
pub(super) fn not_whole(answer: &Value) -> String {
    let names = |is: &dyn Fn(&Value) -> bool| {
        list(&answer["copies"]).filter(|copy| is(copy)).map(|copy| word(&copy["server"])).collect::<Vec<_>>().join(", ")
    };
    let uncompared = names(&|copy| copy["phase"] != "done");
    let damaged = names(&|copy| copy["differing"].as_u64() != copy["replaced"].as_u64());
    let mut parts = Vec::new();
    if !uncompared.is_empty() {
        parts.push(format!("not all copies were compared: see that these servers run, and try again: {uncompared}"));
    }
    if !damaged.is_empty() {
        parts.push(format!(
            "there are damaged files that no other copy in reach has whole, on {damaged}: start the servers of all copies and try again; if none \
             has them, what they hold is lost where no backup has it (`ecotone repair DIR --into NEW` saves the rest of a stopped server's store)"
        ));
    }
    parts.join("; ")
}

pub(super) fn settings(answer: &Value) -> String {
    let set: Vec<&Value> = list(&answer["set"]).collect();
    let mut text = String::new();
    for (name, value) in answer["settings"].as_object().into_iter().flatten() {
        let is_set = set.iter().any(|set| *set == name);
        let value = if value.is_null() { "none".into() } else { word(value) };
        let name: String = name.chars().filter(|character| !character.is_control()).collect();
        line!(text, "{name} = {value}{}", if is_set { "" } else { " (default)" });
    }
    text
}

pub(super) fn set(answer: &Value) -> String {
    let name = word(&answer["setting"]);
    let value = &answer["value"];
    let now = if value.is_null() { "has its default again".into() } else { format!("is {}", word(value)) };
    format!("{name} {now}{}\n", already(answer))
}

pub(super) fn moved(answer: &Value) -> String {
    format!(
        "shard {} is on {} from now on{}: clients are sent there\n",
        word(&answer["shard"]),
        word(&answer["to"]["name"]),
        already(answer)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_shows_who_leads_and_what_is_wrong() {
        let server = |name: &str, more: Value| {
            let mut server = json!({
                "member": 1, "name": name, "state": "active", "role": "data", "zone": "", "peers": "10.0.0.1:7411", "clients": "", "shards": 2
            });
            server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server
        };
        let mut given = json!({
            "federation": "00ff", "generation": 1, "asked": { "name": "a" }, "leader": { "name": "b" }, "term": 3, "voters": ["a", "b", "c"],
            "map_version": 7, "applied": 9, "feature_level": 1, "stopped": null, "is_removed": false,
            "servers": [server("a", json!({ "votes": true })), server("b", json!({ "leads": true, "votes": true })), server("c\u{1b}[2J", json!({ "silent": true }))],
            "shards": [
                { "shard": 1, "slots": [[0, 99], [200, 200]], "primary": "a", "epoch": 2 },
                { "shard": 2, "slots": [[100, 199]], "primary": null, "epoch": 4 },
            ],
        });
        let text = status(&given);
        assert!(text.contains("b leads in term 3; voters: a, b, c\n"), "{text}");
        assert!(
            text.contains("  1      0-99,200  a  ") && text.contains("nobody: its server was removed by force"),
            "{text}"
        );
        assert!(text.contains("active, silent") && !text.contains('\u{1b}'), "{text}");
        assert!(!text.contains("STOPPED") && !text.contains("REMOVED"), "{text}");
        given["leader"] = Value::Null;
        given["stopped"] = "the disk is full".into();
        given["is_removed"] = true.into();
        given["shards"] = json!([]);
        let text = status(&given);
        for said in ["nobody leads", "HAS STOPPED: the disk is full", "IT WAS REMOVED", "ecotone cluster create"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[test]
    fn a_repair_says_what_differed_and_what_is_left_to_do() {
        let copy = |more: Value| {
            let mut copy = json!({
                "server": "a", "phase": "done", "role": "replica", "files": 9, "bytes": 1 << 20, "of_bytes": 4 << 20, "differing": 0,
                "replaced": 0, "named": [], "handed_over_to": null, "trouble": null,
            });
            copy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            copy
        };
        let named =
            |why: Value, from: Value| json!([{ "file": "000012.sst", "what": "a bit", "why_not": why, "from": from }]);
        let sound = json!({ "shard": 3, "copies": [copy(json!({}))] });
        assert!(
            repaired(&sound).contains("a (replica): 9 files, 1.0 MiB: all hold what they should"),
            "{}",
            repaired(&sound)
        );
        let mended = json!({ "shard": 3, "copies": [
            copy(json!({ "differing": 1, "replaced": 1, "named": named(Value::Null, "b".into()), "handed_over_to": "b" })),
        ]});
        let said = repaired(&mended);
        for part in ["1 differed, 1 were replaced", "000012.sst: a bit; replaced by b's", "handed over to b"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(not_whole(&mended), "");
        let left = json!({ "shard": 3, "copies": [
            copy(json!({ "differing": 1, "named": named("nobody has it".into(), Value::Null) })),
            json!({ "server": "c", "phase": "unknown", "trouble": "it does not answer" }),
        ]});
        let said = repaired(&left);
        assert!(
            said.contains("NOT replaced: nobody has it")
                && said.contains("c: nothing is known of it: it does not answer"),
            "{said}"
        );
        let next = not_whole(&left);
        assert!(next.contains("try again: c") && next.contains("on a: start the servers of all copies"), "{next}");
        let comparing = json!({ "shard": 3, "copies": [copy(json!({ "phase": "comparing" })), copy(json!({ "phase": "waiting" }))] });
        assert_eq!(repairing(&comparing), "shard 3: a: 819.2 KiB of 4.0 MiB, a: waiting");
    }

    #[test]
    fn what_was_done_is_said_with_what_comes_next() {
        let server = json!({ "member": 2, "name": "edge-2" });
        let decided = json!({ "outcome": "unchanged", "index": 4 });
        let drained_with = |shards: Value| {
            drained(&json!({ "server": server, "draining": true, "shards": shards, "decided": decided }))
        };
        assert!(drained_with(json!([3, 4])).contains("shards 3, 4: `ecotone cluster rebalance"));
        let empty = drained_with(json!([]));
        assert!(
            empty.contains("ecotone cluster remove HOST:PORT edge-2") && empty.contains("it was so already"),
            "{empty}"
        );
        let by_itself = drained(&json!({
            "server": server, "draining": true, "shards": [3, 4, 5], "leave_by_themselves": [3, 5], "wanted_copies": 3,
            "other_servers": 2, "decided": decided,
        }));
        assert!(by_itself.contains("shards 3, 5 have copies and leave it by themselves"), "{by_itself}");
        assert!(by_itself.contains("shards 4: `ecotone cluster rebalance"), "{by_itself}");
        assert!(
            by_itself.contains("there are 2 servers for 3 copies") && by_itself.contains("copies 2`"),
            "{by_itself}"
        );
        assert!(plan(&json!({ "moves": [] })).contains("nothing to move"));
        let moving = plan(&json!({
            "moves": [],
            "under_way": [{
                "shard": 2, "adding": ["c"], "leaving": ["a"], "next": [{ "change": "switch-over", "server": "b" }],
                "seeding": { "seconds_left": 150 },
            }],
        }));
        assert!(moving.contains("c (about 2 min left)  a       switch-over b"), "{moving}");
        assert!(!moving.contains("by hand"), "{moving}");
        let stuck = plan(&json!({ "moves": [], "without_destination": [1, 4] }));
        assert!(stuck.contains("should leave theirs: 1, 4\n") && stuck.contains("ecotone cluster add"), "{stuck}");
        let text = plan(&json!({ "moves": [{ "shard": 5, "from": null, "to": "edge-2" }] }));
        assert!(text.starts_with("nothing was moved") && text.contains("(lost with its server)  edge-2"), "{text}");
        assert!(text.contains("ecotone cluster move HOST:PORT SHARD --to NAME"), "{text}");
    }

    /// A federation of three, of which `b` leads and is asked.
    fn copied(shards: &Value) -> Value {
        json!({
            "federation": "00ff", "generation": 1, "asked": { "name": "b" }, "leader": { "name": "b" }, "term": 3, "voters": [],
            "servers": [{ "member": 4, "name": "c" }], "shards": shards,
            "replication": { "copies": 3, "level": "quorum" },
        })
    }

    #[test]
    fn a_status_shows_how_far_copies_are_and_what_hangs_on_one_server() {
        let copy = |name: &str, more: Value| {
            let mut copy = json!({ "server": name, "role": "replica", "in_sync": true, "silent": false });
            copy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            copy
        };
        let primary = || copy("a", json!({ "role": "primary", "trouble": "no space\u{1b}" }));
        let mut given = copied(&json!([
            { "shard": 1, "slots": [[0, 99]], "primary": "a", "epoch": 2, "copies": [
                primary(), copy("b", json!({ "lag_bytes": 2048, "lag_ms": 7 })), copy("c", json!({ "lag_bytes": 0 })) ] },
            { "shard": 2, "slots": [[100, 199]], "primary": "a", "epoch": 2, "unprotected": true, "copies": [
                primary(),
                copy("b", json!({ "in_sync": false, "seeding": { "bytes": 512, "of_bytes": 2048, "seconds_left": 12 } })),
                copy("c", json!({ "in_sync": false, "silent": true, "lag_bytes": 5 })) ] },
            { "shard": 3, "slots": [[200, 299]], "primary": null, "epoch": 3, "copies": [copy("b", json!({}))] },
        ]));
        let text = status(&given);
        for said in [
            "  1      0-99     a ",
            "  b (2.0 KiB, 7 ms behind); c\n",
            "b is being made: 25 % of 2.0 KiB, about 12 s left; c (not in sync, silent)\n",
            "nobody yet: another copy is being chosen",
            "3 copies of each shard are wanted; writes are acknowledged at level quorum\n",
            "shard 2 is UNPROTECTED: only a has what it acknowledges\n",
            "shard 1 on a: no space\n",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains("where the leader is asked"), "{text}");
        given["shards"][1]["copies"][1]["seeding"] = json!({ "bytes": 0, "of_bytes": 0, "seconds_left": null });
        assert!(status(&given).contains("b is being made of files that it has; c "), "{}", status(&given));
        given["asked"]["name"] = "c".into();
        assert!(status(&given).contains("where the leader is asked"));
        given["replication"]["copies"] = 1.into();
        assert!(!status(&given).contains("UNPROTECTED"));
    }

    #[test]
    fn what_force_may_lose_is_said_before() {
        let copy = |name: &str, in_sync: bool| json!({ "server": name, "role": "replica", "in_sync": in_sync, "lag_bytes": 4096 });
        let shards =
            json!([{ "shard": 2, "primary": "a", "copies": [copy("a", true), copy("b", true), copy("c", false)] }]);
        let status = copied(&shards);
        let behind = risks(&status, 2, "c");
        for said in [
            "c the primary of shard 2",
            "NOT in sync, and was 4.0 KiB behind",
            "only a, b have is lost",
            "a must be stopped",
        ] {
            assert!(behind.contains(said), "{said}: {behind}");
        }
        // Its number is as good as its name.
        assert!(risks(&status, 2, "4").contains("NOT in sync"));
        let in_sync = risks(&status, 2, "b");
        assert!(in_sync.contains("it is in sync") && in_sync.contains("only a have"), "{in_sync}");
        assert!(risks(&status, 9, "c").contains("no copy of this shard"));
    }

    #[test]
    fn settings_say_which_of_them_were_set() {
        let answer = json!({
            "settings": { "replication.copies": "3", "replication.level": "quorum", "replication.max_staleness_ms": null },
            "set": ["replication.copies"],
        });
        assert_eq!(
            settings(&answer),
            "replication.copies = 3\nreplication.level = quorum (default)\nreplication.max_staleness_ms = none (default)\n"
        );
        let decided = json!({ "outcome": "changed" });
        let changed = |value: Value| set(&json!({ "setting": "a", "value": value, "decided": decided }));
        assert_eq!(
            (changed("b".into()), changed(Value::Null)),
            ("a is b\n".into(), "a has its default again\n".into())
        );
        let created = created(&json!({ "shards": [], "wanted_copies": 3, "missing_servers": 1, "decided": decided }));
        assert!(created.contains("3 copies, which are made now") && created.contains("1 more servers"), "{created}");
    }

    #[test]
    fn the_end_of_a_certificate_is_told_by_how_long_it_is_away() {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(until(now_s - 1), "has ended");
        assert_eq!(until(now_s + 7200 + 65), "ends in 2 h 1 min");
    }
}
