//! The scripts behind `make demo`, with programs of the system put before the real ones.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A script may hang where it should not.
const SECONDS: &str = "300";

fn script(name: &str, folder: &Path, programs: &[(&str, &str)], arguments: &[&str]) -> Command {
    for (program, text) in programs {
        let path = folder.join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}/../../scripts/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", SECONDS, &path]).args(arguments).env("TMPDIR", folder);
    command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    command
}

/// Whether it ended well, what it printed, and what it complained of.
fn output(mut command: Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_session_has_no_settings_of_the_callers() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = script("session.sh", folder.path(), &[], &[env!("CARGO_BIN_EXE_ecotone")]);
    session.env("ECOTONE_CONFIG", "/there/is/none").env("ECOTONE_CLIENTS_PASSWORD", "x");
    session.env("ECOTONE_SERVER_LOG_FORMAT", "neither").env("REDISCLI_AUTH", "y");
    let (is_well, printed, complaint) = output(session);
    assert!(is_well, "{printed}{complaint}");
    assert!(printed.ends_with("Nothing that was acknowledged is lost.\n"), "{printed}");
    assert_eq!(complaint, "");
}

#[test]
fn a_session_whose_client_ends_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let client = "case \" $* \" in *' incr '*) exit 1 ;; esac\nPATH=${PATH#*:} exec redis-cli \"$@\"";
    let session = script("session.sh", folder.path(), &[("redis-cli", client)], &[env!("CARGO_BIN_EXE_ecotone")]);
    let (is_well, printed, complaint) = output(session);
    assert!(!is_well && complaint.contains("redis-cli ended before"), "{printed}{complaint}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["redis-cli"], "it cleans up");
}

#[test]
fn a_password_is_asked_for_before_the_build_and_only_of_who_is_not_root() {
    // What was run, in its order.
    let log = "echo \"${0##*/} $*\" >>\"$TMPDIR/log\"";
    let refused = format!("{log}\nexit 1");
    for (user, sudo, is_done, order) in [
        ("1000", log, true, "sudo true\nbuild all\n"),
        ("1000", refused.as_str(), false, "sudo true\n"),
        ("0", refused.as_str(), true, "build all\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let id = format!("echo {user}");
        let programs = [("id", id.as_str()), ("sudo", sudo), ("build", log)];
        let (is_well, ..) = output(script("ask-root.sh", folder.path(), &programs, &["demo", "build", "all"]));
        assert_eq!(is_well, is_done, "user {user}");
        assert_eq!(std::fs::read_to_string(folder.path().join("log")).unwrap(), order, "user {user}");
    }
}
