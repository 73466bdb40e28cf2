//! The unit file for systemd: systemd takes every line of it, and what it starts comes up.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use common::Server;

/// Where the unit file has the program.
const PROGRAM: &str = "/usr/local/bin/ecotone";

/// What `systemd-analyze security` may say of it, in tenths: with systemd 252 it is 1.1. Later ones
/// may know of more to take away.
const MAX_EXPOSURE: u32 = 20;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd").join(name)
}

fn unit() -> String {
    std::fs::read_to_string(contrib("ecotone.service")).unwrap()
}

/// What follows `name=` in the unit, line by line.
fn settings<'u>(unit: &'u str, name: &str) -> Vec<&'u str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// Runs `systemd-analyze` over `unit`: how it ended and what it said. `None` where it is not
/// installed.
fn analyzed(arguments: &[&str], unit: &str) -> Option<(ExitStatus, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ecotone.service");
    std::fs::write(&file, unit).unwrap();
    match Command::new("systemd-analyze").args(arguments).arg(&file).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            Some((output.status, said))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!(
                "SKIPPED: systemd-analyze is not installed here, so nothing has checked contrib/systemd/ecotone.service"
            );
            None
        }
        Err(error) => panic!("systemd-analyze: {error}"),
    }
}

#[test]
fn systemd_has_nothing_to_say_against_the_unit() {
    // It checks whether the program is there.
    let unit = unit();
    let installed =
        unit.replace(&format!("ExecStart={PROGRAM} "), &format!("ExecStart={} ", env!("CARGO_BIN_EXE_ecotone")));
    assert_ne!(installed, unit, "it starts {PROGRAM}");
    let verify = |unit: &str| analyzed(&["verify", "--man=no"], unit);
    let Some((status, said)) = verify(&installed) else { return };
    // Of units that are installed here it may say something too.
    assert!(status.success() && !said.contains("ecotone"), "{status}: {said}");

    // It does check: names, at values, at the program.
    for (right, wrong) in [
        ("UMask=0077", "Umask=0077"),
        ("WatchdogSec=60", "WatchdogSec=sixty"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@system-services"),
        (env!("CARGO_BIN_EXE_ecotone"), "/no/such/program"),
    ] {
        let (_, said) = verify(&installed.replace(right, wrong)).unwrap();
        assert!(said.contains("ecotone.service"), "{wrong}: {said}");
    }
}

#[test]
fn systemd_finds_the_unit_little_exposed() {
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let Some((status, said)) = analyzed(&["security", "--offline=yes", "--no-pager", &threshold], &unit()) else {
        return;
    };
    if said.contains("unrecognized option") {
        eprintln!("SKIPPED: this systemd-analyze is older than 250 and cannot look at a unit that is not installed");
        return;
    }
    assert!(status.success(), "{said}");
}

/// Its command line and its file of settings, with folders that are there and addresses that are
/// free.
#[test]
fn what_the_unit_starts_comes_up() {
    let folder = tempfile::tempdir().unwrap();
    let unit = unit();
    let [state] = settings(&unit, "StateDirectory")[..] else { panic!("one StateDirectory in {unit}") };
    let (installed, own) = (format!("/var/lib/{state}"), folder.path().join("state"));
    let shipped = std::fs::read_to_string(contrib("ecotone.toml")).unwrap();
    assert!(shipped.contains(&format!("dir = {installed:?}")), "it works where systemd says: {shipped}");
    let free = "listen = \"127.0.0.1:0\"\n";
    let text = format!("{shipped}\n[clients]\n{free}[federation]\n{free}[http]\n{free}");
    let file = folder.path().join("ecotone.toml");
    std::fs::write(&file, text.replace(&installed, own.to_str().unwrap())).unwrap();

    let [start] = settings(&unit, "ExecStart")[..] else { panic!("one ExecStart in {unit}") };
    let start = start.strip_prefix(PROGRAM).unwrap();
    assert!(start.contains("/etc/ecotone/ecotone.toml"), "{start}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(start.replace("/etc/ecotone/ecotone.toml", file.to_str().unwrap()).split_whitespace());
    let server = Server::start(command);
    server.connect().says("PING\r\n", "+PONG\r\n");
    assert!(own.join("store").is_dir());
    server.terminate();
}
