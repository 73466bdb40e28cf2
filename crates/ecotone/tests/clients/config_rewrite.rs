//! The real program, whose settings clients change and have written into its file.

use crate::common;

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use common::{Server, configuration, serve};

const VARIABLE: &str = "ECOTONE_CLIENTS_PASSWORD";

/// Who sets a password, has it written and starts the server anew is not to find out by being
/// refused that another one counts.
#[test]
fn a_setting_over_which_another_place_wins_is_told_when_it_is_set_written_and_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\npassword = \"in-the-file\"\nevent_loops = 1\n");
    let path = file.to_str().unwrap();
    let with_variable = || {
        let mut command = serve(&["--config", path, "--store-option", "durability=none", "--durability", "everysec"]);
        command.env(VARIABLE, "outside");
        command
    };
    let line = std::fs::read_to_string(&file).unwrap().lines().position(|line| line.contains("password")).unwrap() + 1;
    let mut server = Server::start(with_variable());
    let warnings = |said: &str| -> Vec<String> {
        said.lines()
            .filter(|line| line.contains("WARN") && line.contains("does not count"))
            .map(str::to_owned)
            .collect()
    };
    let warning = warnings(&server.said);
    assert_eq!(warning.len(), 2, "{warning:?}");
    assert!(
        warning[0].contains(&format!("clients.password of {path}:{line}")) && warning[0].contains(VARIABLE),
        "{warning:?}"
    );
    assert!(
        warning[1].contains("store.durability of --store-option") && warning[1].contains("--durability"),
        "{warning:?}"
    );

    let mut client = server.connect();
    client.says("AUTH in-the-file\r\n", "-WRONGPASS ");
    let mut client = server.connect();
    client.says("AUTH outside\r\n", "+OK\r\n");
    client.says("CONFIG SET requirepass by-a-client\r\n", "+OK\r\n");
    let warning = server.until_it_says("CONFIG SET has changed a setting");
    assert_eq!((warning["level"].as_str(), warning["setting"].as_str()), (Some("WARN"), Some("clients.password")));
    assert!(warning["place"].as_str().unwrap().contains(VARIABLE), "{warning}");
    client.says("CONFIG REWRITE\r\n", "+OK\r\n");
    let warning = server.until_it_says("CONFIG REWRITE has written a setting");
    assert_eq!((warning["level"].as_str(), warning["setting"].as_str()), (Some("WARN"), Some("clients.password")));
    assert!(
        warning["place"].as_str().unwrap().contains(VARIABLE) && warning["file"].as_str() == Some(path),
        "{warning}"
    );
    let rest = server.terminate_and_read();
    assert!(!rest.contains("by-a-client"), "a password is in the log: {rest}");

    // It is as it was said.
    let server = Server::start(with_variable());
    assert_eq!(warnings(&server.said).len(), 2, "{}", server.said);
    server.connect().says("AUTH by-a-client\r\n", "-WRONGPASS ");
    server.connect().says("AUTH outside\r\n", "+OK\r\n");
    server.terminate();
    let server = Server::with(&file);
    assert!(warnings(&server.said).is_empty(), "{}", server.said);
    server.connect().says("AUTH by-a-client\r\n", "+OK\r\n");
    server.terminate();
}

/// RUST_LOG wins over a key, too, and has no name of its own.
#[test]
fn the_variable_that_wins_over_the_level_of_the_log_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let text = std::fs::read_to_string(&file).unwrap().replace("[server]\n", "[server]\nlog_level = \"warn\"\n");
    std::fs::write(&file, text).unwrap();
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("RUST_LOG", "info");
    let server = Server::start(command);
    let warning = server.said.lines().find(|line| line.contains("does not count")).expect("a warning");
    assert!(
        warning.contains("server.log_level of ") && warning.contains(":2 ") && warning.contains("RUST_LOG"),
        "{warning}"
    );
    server.terminate();
}

/// As in containers, where a file of the host is mounted by itself.
#[test]
fn a_file_that_is_a_mount_point_is_written_in_place() {
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("this process may mount nothing: not tested");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\nmax_clients = 100 # enough\n");
    let (text, was) = (std::fs::read_to_string(&file).unwrap(), std::fs::metadata(&file).unwrap().ino());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$1\" && exec \"$0\" serve --config \"$1\""]);
    command.arg(env!("CARGO_BIN_EXE_ecotone")).arg(&file).env_remove("RUST_LOG");
    let mut server = Server::start(command);
    server.connect().says("CONFIG SET maxclients 99\r\n", "+OK\r\n");
    server.connect().says("CONFIG REWRITE\r\n", "+OK\r\n");
    let warning = server.until_it_says("is written, in place");
    assert!(warning["why"].as_str().unwrap().contains("busy"), "{warning}");
    server.terminate();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text.replace("100 # enough", "99 # enough"));
    assert_eq!(std::fs::metadata(&file).unwrap().ino(), was);
    assert!(!folder.path().join(".ecotone.toml.rewrite").exists());
}
