//! What `COMMAND DOCS` tells of arguments and deprecations, and `COMMAND INFO` of key specs and
//! tips, is what Redis does.
//!
//! Summaries, complexities and what to use instead are words of this server's own.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_resp::command::table;

use crate::common::redis::{RealRedis, elements, text, texts};
use crate::common::{Fixture, words};

/// Commands that Redis 7.0 does not have.
const LATER: [&str; 5] = ["client|setinfo", "client|no-touch", "client|capa", "cluster|myshardid", "waitaof"];

/// Commands whose arguments or tips, or whether they are deprecated, Redis 7.0 tells otherwise than
/// 7.2.
const OTHERWISE: [&str; 10] = [
    "client|list",
    "client|kill",
    "cluster|meet",
    "command|getkeys",
    "command|getkeysandflags",
    "config|get",
    "quit",
    "zrank",
    "zrevrank",
    "hello",
];

/// Commands that no Redis has.
const OWN: [&str; 5] = ["inspect", "compact", "backup", "federation", "client|level"];

/// Redis' alone: what changed when, in `DOCS`, and notes in prose of key specs, in `INFO`.
const NOT_TOLD: &str = "history";
const NOT_TOLD_OF_SPECS: [&str; 1] = ["notes"];

fn shown(answer: Option<&&[u8]>) -> String {
    answer.map_or_else(|| "nothing".into(), |answer| String::from_utf8_lossy(answer).replace("\r\n", " "))
}

fn string(answer: &[u8]) -> String {
    String::from_utf8_lossy(text(answer)).into_owned()
}

/// The fields of a map, each with the bytes of its value.
fn fields(map: &[u8]) -> BTreeMap<String, &[u8]> {
    elements(map).unwrap().chunks(2).map(|pair| (string(pair[0]), pair[1])).collect()
}

/// What of a field of `DOCS` must be the same bytes; `None`: only that it is told.
fn told(field: &str, value: &[u8], is_old: bool) -> Option<Vec<u8>> {
    match field {
        "arguments" if is_old => Some(as_before(value).into_bytes()),
        "since" | "group" | "doc_flags" | "deprecated_since" | "arguments" => Some(value.to_vec()),
        // The command, between a backtick and a space or a backtick.
        "replaced_by" => text(value).split(|byte| b" `".contains(byte)).nth(1).map(<[u8]>::to_vec),
        _ => None,
    }
}

/// Arguments as both versions tell them: 7.2 shows what was a name in 7.0, has other names for what
/// is not shown, and tells the parts of groups alike.
fn as_before(arguments: &[u8]) -> String {
    let one = |argument: &[u8]| {
        let mut fields = fields(argument);
        let parts = fields.remove("arguments").map(as_before);
        let name = fields.remove("name");
        let shown = fields.remove("display_text").or(name.filter(|_| parts.is_none())).map(string);
        let rest: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {}", value.escape_ascii())).collect();
        format!("{shown:?} {rest:?} {parts:?}\n")
    };
    elements(arguments).unwrap().into_iter().map(one).collect()
}

fn compare_docs(name: &str, own: &[u8], real: &[u8], is_old: bool, differences: &mut Vec<String>) {
    let (own, mut real) = (fields(own), fields(real));
    real.remove(NOT_TOLD);
    let names: BTreeSet<&String> = own.keys().chain(real.keys()).collect();
    for field in names {
        let (ours, theirs) = (own.get(field), real.get(field));
        let is_same = match (ours, theirs) {
            (Some(ours), Some(theirs)) => told(field, ours, is_old) == told(field, theirs, is_old),
            _ => false,
        };
        if !is_same {
            differences.push(format!("{name}, {field}:\n  {}\nand not\n  {}", shown(ours), shown(theirs)));
        }
    }
}

fn compare_info(name: &str, own: &[u8], real: &[u8], differences: &mut Vec<String>) {
    let (own, real) = (elements(own).unwrap(), elements(real).unwrap());
    let tips = |info: &[&[u8]]| texts(info[7]).into_iter().collect::<BTreeSet<_>>();
    if tips(&own) != tips(&real) {
        differences.push(format!("{name}, tips: {} and not {}", shown(own.get(7)), shown(real.get(7))));
    }
    let specs = |info: &[&[u8]]| {
        let specs = elements(info[8]).unwrap();
        let places = |spec| fields(spec).into_iter().filter(|(field, _)| !NOT_TOLD_OF_SPECS.contains(&field.as_str()));
        specs.into_iter().flat_map(places).map(|(field, value)| (field, value.to_vec())).collect::<Vec<_>>()
    };
    if specs(&own) != specs(&real) {
        differences.push(format!("{name}, key specs:\n  {}\nand not\n  {}", shown(own.get(8)), shown(real.get(8))));
    }
}

#[test]
fn arguments_and_tips_are_told_as_in_redis() {
    let (redis, fixture) = (RealRedis::start(), Fixture::new());
    let (mut differences, is_old) = (Vec::new(), redis.is_before_7_2());
    for version in [2, 3] {
        let (mut ours, mut theirs) = (fixture.client(), redis.client(version));
        ours.ask(&format!("HELLO {version}"));
        let is_own = |name: &str| OWN.iter().any(|own| name == *own || name.split('|').next() == Some(own));
        let is_compared =
            |name: &str| !is_own(name) && (!is_old || !LATER.contains(&name) && !OTHERWISE.contains(&name));
        for command in table::all_with_subcommands().filter(|command| is_compared(command.name)) {
            let mut ask = |what: &str| {
                let request = format!("COMMAND {what} {}", command.name);
                (ours.send(&words(&request)), theirs.send(&words(&request)))
            };
            let (own, real) = ask("DOCS");
            match (elements(&own).as_deref(), elements(&real).as_deref()) {
                (Some([_, own]), Some([_, real])) => compare_docs(command.name, own, real, is_old, &mut differences),
                _ => differences.push(format!("{}: Redis has none", command.name)),
            }
            let (own, real) = ask("INFO");
            if let (Some([own]), Some([real])) = (elements(&own).as_deref(), elements(&real).as_deref()) {
                compare_info(command.name, own, real, &mut differences);
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
}
