//! What a server answers to `FEDERATION`, for people. It is not trusted: what is missing or odd is
//! left out, and control characters cannot steer the terminal.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

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
    let mut rows =
        vec![row(["server", "name", "state", "role", "zone", "vote", "shards", "servers reach it at", "clients"])];
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
            &cell("peers"),
            &cell("clients"),
        ]));
    }
    line!(text, "");
    table(&mut text, &rows);
    line!(text, "");
    shards(&mut text, &status["shards"]);
    let settings = status["settings"].as_object().into_iter().flatten();
    settings.for_each(|(name, value)| line!(text, "setting {name} = {}", word(value)));
    text
}

fn shards(text: &mut String, shards: &Value) {
    if list(shards).next().is_none() {
        line!(text, "no slots are dealt yet: ecotone cluster create HOST:PORT");
        return;
    }
    let mut rows = vec![row(["shard", "slots", "server", "epoch"])];
    for shard in list(shards) {
        let primary = match word(&shard["primary"]) {
            none if none.is_empty() => "nobody: its server was removed by force".into(),
            primary => primary,
        };
        rows.push(row([&word(&shard["shard"]), &ranges(&shard["slots"]), &primary, &word(&shard["epoch"])]));
    }
    table(text, &rows);
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
    text
}

pub(super) fn drained(answer: &Value) -> String {
    let name = word(&answer["server"]["name"]);
    if answer["draining"] != Value::Bool(true) {
        return format!("{name} is not drained any more{}\n", already(answer));
    }
    let left = words(&answer["shards"]);
    let next = if left.is_empty() {
        format!("it has no shards: once it does not vote, remove it with `ecotone cluster remove HOST:PORT {name}`")
    } else {
        format!("it still has and serves shards {left}: `ecotone cluster rebalance HOST:PORT` says where to move them")
    };
    format!("{name} is drained: it gets no more shards, and votes no longer{}\n{next}\n", already(answer))
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
    if list(&answer["moves"]).next().is_none() {
        return "every shard is where it should be: nothing to move\n".into();
    }
    let mut text = "nothing was moved; these shards should be:\n".to_owned();
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
        "A shard has one copy, and is moved by hand: stop its server, copy the shard's store, and say `ecotone cluster move HOST:PORT SHARD --to NAME`"
    );
    text
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
        assert!(plan(&json!({ "moves": [] })).contains("nothing to move"));
        let stuck = plan(&json!({ "moves": [], "without_destination": [1, 4] }));
        assert!(stuck.contains("should leave theirs: 1, 4\n") && stuck.contains("ecotone cluster add"), "{stuck}");
        let text = plan(&json!({ "moves": [{ "shard": 5, "from": null, "to": "edge-2" }] }));
        assert!(text.starts_with("nothing was moved") && text.contains("(lost with its server)  edge-2"), "{text}");
        assert!(text.contains("ecotone cluster move HOST:PORT SHARD --to NAME"), "{text}");
    }

    #[test]
    fn the_end_of_a_certificate_is_told_by_how_long_it_is_away() {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(until(now_s - 1), "has ended");
        assert_eq!(until(now_s + 7200 + 65), "ends in 2 h 1 min");
    }
}
