//! A federation as its operator makes it: by commands, with tokens.

use std::path::Path;
use std::process::{Command, Output};

use crate::serve::Server;

fn ecotone(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ecotone")).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn cluster(arguments: &[&str]) -> serde_json::Value {
    let output = ecotone(&[&["cluster"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command says that is refused.
fn refused(arguments: &[&str]) -> String {
    let output = ecotone(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn servers_join_with_a_token_each_and_start_again_without() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|name| directory.path().join(name));
    let made = cluster(&["init", "--dir", text(&first), "--name", "first"]);
    assert_eq!(made["server"], "first");
    assert_eq!(made["federation"].as_str().unwrap().len(), 16);
    let again = refused(&["cluster", "init", "--dir", text(&first)]);
    assert!(again.contains("authority.pem"), "{again}");

    let mut coordinator = Server::with(directory.path(), "first", &[]);
    let address = coordinator.address();
    let token = cluster(&["token", "--dir", text(&first)])["token"].as_str().unwrap().to_owned();
    let arguments = ["--join", &address, "--token", &token];
    let mut joined = Server::with(directory.path(), "second", &arguments);
    joined.address();
    // What has no certificate, or a token that is spent, does not come up.
    let spent = ["serve", "--dir", text(&third), "--name", "third", "--clients", "off", "--listen", "127.0.0.1:0"];
    let spent = refused(&[&spent[..], &arguments].concat());
    assert!(spent.contains("spent-token") && spent.contains("cluster token"), "{spent}");
    assert!(!third.join("store").exists());
    // The same command line starts it again.
    joined.terminate();
    let mut joined = Server::with(directory.path(), "second", &arguments);
    joined.address();
    let names = |listed: serde_json::Value| -> Vec<String> {
        let servers = listed["servers"].as_array().unwrap().clone();
        let mut names: Vec<_> = servers.iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(cluster(&["servers", "--dir", text(&first)])), ["first", "second"]);
    let removed = cluster(&["remove-server", "second", "--dir", text(&first)]);
    assert_eq!(removed["removed"].as_str().unwrap().len(), 16);
    assert_eq!(names(cluster(&["servers", "--dir", text(&first)])), ["first"]);
    let unknown = refused(&["cluster", "remove-server", "second", "--dir", text(&first)]);
    assert!(unknown.contains("second"), "{unknown}");
    let elsewhere = refused(&["cluster", "token", "--dir", text(&second)]);
    assert!(elsewhere.contains("no authority") && elsewhere.contains("cluster init"), "{elsewhere}");
    joined.terminate();
    coordinator.terminate();
}

#[test]
fn a_server_that_others_can_reach_needs_an_identity() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("data");
    let with = ["serve", "--dir", text(&folder), "--clients", "off", "--http", "off", "--listen", "0.0.0.0:0"];
    let refused = refused(&[&with[..], &["--announce", "edge:7411"]].concat());
    for said in ["0.0.0.0:0", "ecotone cluster init --dir", "--token"] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    assert!(!folder.join("store").exists());
}
