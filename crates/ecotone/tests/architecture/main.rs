//! Keeps the house in order: which crate may depend on which, what the pure crates must not touch,
//! who may speak C, and that no files import each other in a circle. Each failure names the place
//! to mend.
//!
//! The arrows are the dependency diagram of ARCHITECTURE.md; a new crate is drawn there and added
//! to [`ARROWS`] here.

mod circles;
mod rust;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rust::{Token, tokens};

/// Each crate (its folder in `crates/`) and the crates of this workspace that it may depend on, for
/// any purpose: to run, to build, to test. A dependency for tests alone is an arrow too: it would
/// let a lower room lean on a higher one.
const ARROWS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("policy", &["types"]),
    ("control", &["types"]),
    ("replica", &["control"]),
    ("raftlog", &["control", "types"]),
    ("sim", &["control", "policy", "replica", "types"]),
    ("energy", &["policy", "types"]),
    ("identity", &["types"]),
    ("io", &[]),
    ("rocks", &["io"]),
    ("valuelog", &["io"]),
    ("engine", &["io", "policy", "rocks", "types", "valuelog"]),
    ("inspect", &["engine", "io", "policy", "rocks", "types", "valuelog"]),
    ("transport", &["identity", "io", "types"]),
    ("membership", &["control", "identity", "raftlog", "transport", "types"]),
    ("mirror", &["control", "io", "replica"]),
    ("replication", &["control", "identity", "io", "membership", "mirror", "replica", "transport", "types"]),
    (
        "cluster",
        &["control", "energy", "engine", "identity", "io", "membership", "policy", "rocks", "transport", "types"],
    ),
    ("keyspace", &["engine"]),
    ("resp", &["engine", "inspect", "keyspace"]),
    (
        "server",
        &[
            "cluster",
            "control",
            "energy",
            "engine",
            "identity",
            "io",
            "keyspace",
            "membership",
            "mirror",
            "policy",
            "replica",
            "replication",
            "resp",
            "types",
        ],
    ),
    ("bench", &["energy", "engine", "inspect", "server", "types"]),
    ("lab", &["bench", "energy", "engine", "policy", "server", "types"]),
    (
        "ecotone",
        &["bench", "control", "engine", "identity", "inspect", "lab", "membership", "policy", "server", "types"],
    ),
];

/// Arrows up, for tests alone. Tests of `engine` end with a check of all that they leave, and what
/// checks whole stores is above it.
const TEST_ARROWS: &[(&str, &str)] = &[("engine", "inspect")];

/// What `engine` offers to one crate only: its module, and who may name it.
const OFFERED: (&str, &[&str]) = ("offline", &["engine", "inspect"]);

/// Crates without clock, IO, threads and global randomness: time and seeds are arguments.
const PURE: &[&str] = &["types", "policy", "control", "replica"];

/// What a pure crate must not name, as a path from `std`. (A `HashMap` is here because its order of
/// iteration is random.)
const IMPURE_STD: &[&str] = &[
    "collections::HashMap",
    "collections::HashSet",
    "collections::hash_map",
    "collections::hash_set",
    "env",
    "fs",
    "hash::RandomState",
    "io",
    "net",
    "process",
    "sync::Condvar",
    "sync::Mutex",
    "sync::OnceLock",
    "sync::RwLock",
    "sync::atomic",
    "sync::mpsc",
    "thread",
    "time::Instant",
    "time::SystemTime",
];

/// Crates that a pure crate must not name in its sources; its tests may draw random input.
const IMPURE_CRATES: &[&str] = &["rand", "tokio"];

/// The crates that declare or export functions of another language: RocksDB's shim, and mapped
/// files, which that shim uses as well.
const SPEAK_C: &[&str] = &["io", "rocks"];

/// Files elsewhere that may define a function with C's calling convention, and why. None of them
/// calls C++.
const CALLED_BY_THE_KERNEL: &[(&str, &str)] =
    &[("crates/lab/src/process.rs", "the lab's signal handler notes that the user wants it to end")];

#[test]
fn crates_depend_only_along_the_arrows() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, dependencies) in workspace_dependencies() {
        let is_allowed = |allowed: &[&str], (dependency, is_for_tests): &(String, bool)| {
            allowed.contains(&dependency.as_str())
                || *is_for_tests && TEST_ARROWS.contains(&(name.as_str(), dependency.as_str()))
        };
        let Some(allowed) = allowed.get(name.as_str()) else {
            wrong.push(format!(
                "crate {name} is unknown: draw it in the dependency diagram of ARCHITECTURE.md and add it to ARROWS in {}",
                file!()
            ));
            continue;
        };
        for dependency in dependencies {
            if !is_allowed(allowed, &dependency) {
                wrong.push(format!(
                    "crates/{name}/Cargo.toml depends on {}; it may depend on {allowed:?} only",
                    dependency.0
                ));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_arrows_point_down_only() {
    // Each crate stands below the crates that may depend on it, so no circle is possible.
    for (at, (name, allowed)) in ARROWS.iter().enumerate() {
        for dependency in *allowed {
            let stands = ARROWS.iter().position(|(other, _)| other == dependency);
            assert!(
                stands.is_some_and(|stands| stands < at),
                "ARROWS: {name} -> {dependency}, but {dependency} does not stand above {name} in the table"
            );
        }
    }
}

#[test]
fn pure_crates_have_no_clock_io_threads_or_randomness() {
    let mut wrong = Vec::new();
    for name in PURE {
        for file in files(&crates_dir().join(name).join("src"), &["rs"]) {
            let text = read(&file);
            for (line, what) in impurities(&tokens(&text)) {
                wrong.push(format!(
                    "{}:{line}: {what}; crate {name} is pure: pass it in as an argument, or move the code to a crate above",
                    shown(&file)
                ));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn only_io_and_rocks_speak_c() {
    let mut wrong = Vec::new();
    for dir in crate_dirs() {
        if SPEAK_C.iter().any(|speaks| dir.ends_with(speaks)) {
            continue;
        }
        for file in files(&dir, &["rs"]) {
            let lines = foreign_functions(&tokens(&read(&file)));
            let shown = shown(&file);
            if CALLED_BY_THE_KERNEL.iter().any(|(excepted, _)| *excepted == shown) {
                if lines.is_empty() {
                    wrong.push(format!("{shown}: no foreign function any more; take it out of CALLED_BY_THE_KERNEL"));
                }
                continue;
            }
            for line in lines {
                wrong.push(format!("{shown}:{line}: a foreign function; it belongs in one of {SPEAK_C:?}"));
            }
        }
        for file in files(&dir, &["c", "cc", "cpp", "h", "hpp"]) {
            // A client in C that tests talk with is no part of the program.
            if file.starts_with(dir.join("tests")) {
                continue;
            }
            wrong.push(format!("{}: C and C++ belong in one of {SPEAK_C:?}", shown(&file)));
        }
    }
    assert_none(&wrong);
}

#[test]
fn what_is_offered_to_one_crate_is_used_by_no_other() {
    let (module, users) = OFFERED;
    let mut wrong = Vec::new();
    for dir in crate_dirs().into_iter().filter(|dir| !users.iter().any(|user| dir.ends_with(user))) {
        for file in files(&dir.join("src"), &["rs"]) {
            let text = read(&file);
            let all = tokens(&text);
            let named = all.iter().filter(|(_, token)| *token == Token::Word(module));
            wrong.extend(named.map(|(line, _)| {
                format!("{}:{line}: `{module}` of engine is for {users:?} only: call a Store, or inspect", shown(&file))
            }));
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_crate_says_what_it_is_for() {
    let mut wrong = Vec::new();
    for dir in crate_dirs() {
        let roots: Vec<PathBuf> =
            ["src/lib.rs", "src/main.rs"].iter().map(|root| dir.join(root)).filter(|root| root.exists()).collect();
        if roots.is_empty() {
            wrong.push(format!("{}: neither src/lib.rs nor src/main.rs", shown(&dir)));
        }
        for root in roots {
            if !read(&root).starts_with("//!") {
                wrong.push(format!(
                    "{}: begin with `//!`: what the crate is for, and what must never be in it",
                    shown(&root)
                ));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn no_imports_go_in_a_circle() {
    let mut wrong = Vec::new();
    for dir in crate_dirs() {
        for group in circles::circles(&dir) {
            wrong.push(format!(
                "these files import each other in a circle; move what they share into a file below them, or pass it \
                 in: {}",
                group.join(", ")
            ));
        }
    }
    assert_none(&wrong);
}

/// The scanner itself: what must be found, and what must be left alone.
#[test]
fn the_scanner_reads_rust() {
    let found = |source: &str| -> Vec<String> {
        impurities(&tokens(source)).into_iter().map(|(line, what)| format!("{line} {what}")).collect()
    };
    assert_eq!(found("\nlet t = std::time::Instant::now();"), ["2 std::time::Instant"]);
    assert_eq!(found("use std::{\n    cmp::Ordering,\n    fs,\n};"), ["3 std::fs"]);
    assert_eq!(found("use std::time::{Duration, SystemTime};"), ["1 std::time::SystemTime"]);
    assert_eq!(
        found("use ::std::{collections::{BTreeMap, HashMap}, thread::sleep};"),
        ["1 std::collections::HashMap", "1 std::thread"]
    );
    assert_eq!(found("let x = rand::random();"), ["1 rand"]);
    assert_eq!(found("#[tokio::test]\nfn f() {}"), ["1 tokio"]);
    assert_eq!(found("use rand as dice;"), ["1 rand"]);
    assert_eq!(found("use std::time;\nlet t = time::Instant::now();"), ["1 std::time whole: name what you use of it"]);
    assert_eq!(found("use std::{io::{self, Read}, cmp};"), ["1 std::io"]);
    assert_eq!(found("use std::time::{self, Duration};"), ["1 std::time whole: name what you use of it"]);
    assert_eq!(found("use std::collections::*;"), ["1 std::collections::*: name what you use of it"]);

    assert!(found("// std::fs\n/* std::net /* std::thread */ rand:: */\n//! tokio::spawn").is_empty());
    assert!(found(r##"let s = "std::fs"; let r = r#"rand:: "tokio:: "#; let b = b"std::net\"";"##).is_empty());
    assert!(found("use std::time::Duration; use std::collections::{BTreeMap, btree_map};").is_empty());
    assert!(found("fn f<'a>(q: &'a str) -> char { '\"' } // std::fs\nlet c = '\\''; let rand = 1;").is_empty());
    assert!(found("impl std::fmt::Display for X {} mod fs { pub fn net() {} }").is_empty());

    assert_eq!(foreign_functions(&tokens("\nunsafe extern \"C\" fn f() {}")), [2]);
    assert_eq!(foreign_functions(&tokens("unsafe extern \"C-unwind\" { fn g(); }")), [1]);
    assert_eq!(foreign_functions(&tokens("unsafe extern { fn g(); }")), [1]);
    assert!(
        foreign_functions(&tokens("extern crate alloc; // extern \"C\"\nlet s = \"extern \\\"C\\\"\";")).is_empty()
    );
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

// ---- The workspace ----

fn crates_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in crates/").to_path_buf();
    assert!(dir.ends_with("crates"), "{} is not the folder of the crates", dir.display());
    dir
}

fn crate_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = fs::read_dir(crates_dir())
        .expect("crates/ can be read")
        .map(|entry| entry.expect("crates/ can be read").path())
        .filter(|dir| dir.join("Cargo.toml").exists())
        .collect();
    dirs.sort();
    assert!(dirs.len() > 1, "no crates found: this test would pass on nothing");
    dirs
}

/// All files under `dir` (none if it is not there) whose extension is one of `extensions`.
fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().map(|entry| entry.expect("a folder can be read")) {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn shown(path: &Path) -> String {
    let root = crates_dir().parent().map(Path::to_path_buf).unwrap_or_default();
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// For each crate of the workspace, by folder name, the crates of the workspace that its Cargo.toml
/// names, and whether for its tests only.
fn workspace_dependencies() -> BTreeMap<String, BTreeSet<(String, bool)>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(crates_dir())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let list = |value: &serde_json::Value| value.as_array().cloned().expect("an array in cargo metadata");
    let folder = |path: &Path| path.file_name().and_then(|n| n.to_str()).expect("a crate lies in a folder").to_string();

    let mut crates = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
        let name = folder(Path::new(manifest).parent().expect("a manifest lies in a folder"));
        let dependencies = list(&package["dependencies"])
            .iter()
            .filter_map(|d| Some((folder(Path::new(d["path"].as_str()?)), d["kind"] == "dev")))
            .collect();
        crates.insert(name, dependencies);
    }
    assert_eq!(crates.len(), crate_dirs().len(), "every folder in crates/ is a member of the workspace");
    crates
}

// ---- What is asked of tokens ----

/// Where `tokens` name what a pure crate must not: line and path.
fn impurities(tokens: &[(usize, Token<'_>)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, (line, token)) in tokens.iter().enumerate() {
        let Token::Word(word) = token else { continue };
        let next = tokens.get(at + 1).map(|(_, token)| token);
        let begins_path =
            !matches!(at.checked_sub(2).map(|two| &tokens[two..at]), Some([(_, Token::Word(_)), (_, Token::Path)]));
        let used = at > 0 && tokens[at - 1].1 == Token::Word("use");
        if *word == "std" && next == Some(&Token::Path) {
            let mut cursor = at + 2;
            std_paths(tokens, &mut cursor, "", &mut found);
        } else if IMPURE_CRATES.contains(word) && begins_path && (next == Some(&Token::Path) || used) {
            found.push((*line, (*word).to_string()));
        }
    }
    found
}

/// Follows one path, or one braced group of paths, that `prefix` (of `std`) leads to, and notes
/// what is impure.
fn std_paths(tokens: &[(usize, Token<'_>)], cursor: &mut usize, prefix: &str, found: &mut Vec<(usize, String)>) {
    let Some((line, token)) = tokens.get(*cursor) else { return };
    *cursor += 1;
    match token {
        Token::Sign('{') => {
            while let Some((_, token)) = tokens.get(*cursor) {
                match token {
                    Token::Sign('}') => {
                        *cursor += 1;
                        return;
                    }
                    Token::Sign(',') => *cursor += 1,
                    _ => std_paths(tokens, cursor, prefix, found),
                }
            }
        }
        Token::Sign('*') => found.push((*line, format!("std::{prefix}*: name what you use of it"))),
        Token::Word(word) => {
            let path =
                if *word == "self" { prefix.trim_end_matches("::").to_string() } else { format!("{prefix}{word}") };
            let impure = IMPURE_STD.contains(&path.as_str());
            let parent_of_impure = IMPURE_STD.iter().any(|impure| impure.starts_with(&format!("{path}::")));
            if impure {
                found.push((*line, format!("std::{path}")));
            }
            if tokens.get(*cursor).is_some_and(|(_, token)| *token == Token::Path) {
                *cursor += 1;
                // Beyond an impure module nothing more is to be said, but its group must still be
                // stepped over.
                let mut beyond = Vec::new();
                let deeper = format!("{path}::");
                std_paths(tokens, cursor, &deeper, if impure { &mut beyond } else { found });
            } else if parent_of_impure {
                found.push((*line, format!("std::{path} whole: name what you use of it")));
            }
        }
        _ => {}
    }
}

/// The lines of `extern` blocks and functions. `extern crate` is not one.
fn foreign_functions(tokens: &[(usize, Token<'_>)]) -> Vec<usize> {
    tokens
        .windows(2)
        .filter(|pair| pair[0].1 == Token::Word("extern") && pair[1].1 != Token::Word("crate"))
        .map(|pair| pair[0].0)
        .collect()
}
