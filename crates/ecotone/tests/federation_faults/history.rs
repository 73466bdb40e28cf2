//! What all servers have said of the federation, and what was answered to clients: the invariants.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// A term of a log that was begun once or anew.
type Term = (u64, u64);

#[derive(Default)]
pub struct History {
    /// Who has led in each term, as leader or others have said.
    leaders: BTreeMap<Term, u64>,
    /// Whose a shard was in each of its epochs.
    owners: BTreeMap<(u64, u64), String>,
    /// The map at each of its versions.
    maps: BTreeMap<(u64, u64), Value>,
    /// Removed servers, and the entry that has removed them.
    removed: BTreeMap<u64, u64>,
    /// Settings that only a removed server was asked for.
    pub forbidden: BTreeSet<String>,
    /// What was seen that must not be.
    violations: Vec<String>,
    /// How often a server has said something.
    pub looks: u64,
}

impl History {
    pub fn remove(&mut self, member: u64, index: u64) {
        self.removed.insert(member, index);
    }

    /// Takes the answer to `FEDERATION STATUS` of one server.
    pub fn see(&mut self, status: &Value) {
        self.looks += 1;
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {status}"));
        let generation = number(&status["generation"]);
        let (applied, by) = (number(&status["applied"]), number(&status["asked"]["member"]));
        if !status["leader"].is_null() {
            let (term, leader) = ((generation, number(&status["term"])), number(&status["leader"]["member"]));
            let first = *self.leaders.entry(term).or_insert(leader);
            self.check(first == leader, || format!("term {term:?} is led by {first} and, says {by}, by {leader}"));
            let removed_by = self.removed.get(&leader).copied();
            self.check(removed_by.is_none_or(|index| index > applied), || {
                format!("{by} is at {applied} and follows {leader}, which {removed_by:?} has removed")
            });
        }
        for shard in array(&status["shards"]) {
            let epoch = (number(&shard["shard"]), number(&shard["epoch"]));
            let Some(owner) = shard["primary"].as_str() else { continue };
            let first = self.owners.entry(epoch).or_insert_with(|| owner.to_owned()).clone();
            self.check(first == owner, || format!("shard and epoch {epoch:?}: of {first} and, says {by}, of {owner}"));
        }
        for name in self.forbidden.clone() {
            self.check(status["settings"].get(&name).is_none(), || {
                format!("{name} is set, which a removed server asked for")
            });
        }
        let version = (generation, number(&status["map_version"]));
        let map = content(status);
        let first = self.maps.entry(version).or_insert_with(|| map.clone()).clone();
        self.check(first == map, || format!("at version {version:?} the map is {first} and, says {by}, {map}"));
    }

    fn check(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.violations.push(what());
        }
    }

    /// Fails with all that was seen and must not be.
    pub fn assert_sound(&self, when: &str) {
        assert!(self.violations.is_empty(), "{when}: {:#?}", self.violations);
    }

    pub fn summary(&self) -> String {
        let terms = self.leaders.len();
        let leaders: BTreeSet<u64> = self.leaders.values().copied().collect();
        let shards: BTreeSet<u64> = self.owners.keys().map(|(shard, _)| *shard).collect();
        format!(
            "{} looks: {terms} terms, {} leaders, {} epochs of {} shards, {} versions of the map, {} removed",
            self.looks,
            leaders.len(),
            self.owners.len(),
            shards.len(),
            self.maps.len(),
            self.removed.len()
        )
    }

    pub fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Epochs in which a shard was handed on.
    pub fn moves(&self) -> usize {
        let shards: BTreeSet<u64> = self.owners.keys().map(|(shard, _)| *shard).collect();
        self.owners.len() - shards.len()
    }
}

pub fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What all servers say of one version of the map.
pub fn content(status: &Value) -> Value {
    let servers: Vec<Value> = array(&status["servers"])
        .iter()
        .map(|server| {
            let part = |name: &str| server[name].clone();
            json!([
                part("member"),
                part("name"),
                part("state"),
                part("role"),
                part("zone"),
                part("peers"),
                part("clients")
            ])
        })
        .collect();
    // What servers say of their copies comes with time, and to some only.
    let shards: Vec<Value> = array(&status["shards"])
        .iter()
        .map(|shard| {
            let copies: Vec<Value> =
                array(&shard["copies"]).iter().map(|copy| json!([copy["server"], copy["in_sync"]])).collect();
            json!([shard["shard"], shard["slots"], shard["primary"], shard["epoch"], copies])
        })
        .collect();
    json!({
        "servers": servers,
        "shards": shards,
        "settings": status["settings"],
        "feature_level": status["feature_level"],
    })
}
