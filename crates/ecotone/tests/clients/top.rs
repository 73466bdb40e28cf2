//! `ecotone top` against real servers: one that asks for a password, and two that form a
//! federation.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Server, configuration, serve};
use serde_json::Value;

/// How long two servers may take to know each other on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.arg("top").args(arguments).env_remove("ECOTONE_CLIENTS_PASSWORD").stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> (Output, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    (output, said, complained)
}

/// Again where it fails: it gives up after seconds, which a busy machine takes now and then.
fn once(address: &str) -> Value {
    let began = Instant::now();
    let said = loop {
        let (output, said, complained) = output(&mut top(&[address, "--once", "--json"]));
        if output.status.success() {
            break said;
        }
        assert!(began.elapsed() < PATIENCE, "{complained}");
    };
    assert_eq!(said.lines().count(), 1, "{said}");
    serde_json::from_str(&said).unwrap()
}

/// Asks until `shows` is true of the answer.
fn until(address: &str, what: &str, shows: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let answer = once(address);
        if shows(&answer) {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}: {answer:#}");
    }
}

fn of<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let servers = answer["servers"].as_array().unwrap();
    servers.iter().find(|server| server["name"] == name).unwrap_or(&Value::Null)
}

fn started(folder: &Path, name: &str, more: &[&str]) -> Server {
    let dir = folder.join(name);
    let mut command = serve(&["--dir", dir.to_str().unwrap(), "--name", name, "--listen", "127.0.0.1:0"]);
    command.args(["--clients", "127.0.0.1:0"]).args(more).env("ECOTONE_SERVER_LOG_FORMAT", "json");
    Server::start(command)
}

#[test]
fn a_federation_of_two_is_seen_from_both_and_one_that_left_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let first = started(folder.path(), "first", &[]);
    let coordinator = once(&first.listening)["servers"][0]["address"].as_str().unwrap().to_owned();
    let second = started(folder.path(), "second", &["--join", &coordinator]);
    let mut client = second.connect();
    // Long enough to be separated from its key.
    let value = "v".repeat(1000);
    for _ in 0..100 {
        client.says(&format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1000\r\n{value}\r\n"), "+OK\r\n");
    }

    // What the member does is known at the coordinator.
    let snapshot = until(&first.listening, "the member's operations", |answer| {
        of(answer, "second")["operations_total"].as_u64() >= Some(100)
    });
    let (own, member) = (of(&snapshot, "first"), of(&snapshot, "second"));
    assert_eq!((&own["role"], &own["is_self"], &own["is_gone"]), (&"coordinator".into(), &true.into(), &false.into()));
    assert_eq!(
        (&member["role"], &member["is_self"], &member["writers"]),
        (&"member".into(), &false.into(), &"run".into())
    );
    assert!(
        member["written_bytes_total"].as_u64() >= Some(100_000) && member["joules_total"].as_f64() > Some(0.0),
        "{member}"
    );
    assert_eq!((&member["energy_source"], &snapshot["energy_source"]), (&"model".into(), &"model".into()));
    assert!(!member["takes_jobs"].is_null() && member["free_bytes"].as_u64() > Some(0), "{member}");

    // The member knows itself and its coordinator.
    let snapshot = until(&second.listening, "the coordinator", |answer| !of(answer, "first").is_null());
    assert_eq!(
        (&of(&snapshot, "first")["role"], &snapshot["coordinator"]),
        (&"coordinator".into(), &coordinator.as_str().into())
    );
    assert_eq!(of(&snapshot, "second")["is_self"], true);
    assert!(of(&snapshot, "first")["operations_total"].as_u64() > Some(0), "{snapshot}");

    let (output, screen, complained) = output(&mut top(&[&first.listening, "--once"]));
    assert!(output.status.success(), "{complained}");
    for shown in ["first (coordinator)", "second", "µJ/op", "value log of first"] {
        assert!(screen.contains(shown), "{shown}: {screen}");
    }
    assert!(screen.lines().count() <= 24 && !screen.contains('\u{1b}'), "{screen}");

    second.terminate();
    until(&first.listening, "the member to be gone", |answer| of(answer, "second")["is_gone"] == true);
    first.terminate();
}

#[test]
fn lines_of_json_go_on_over_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = started(folder.path(), "only", &[]);
    let address = server.listening.clone();
    let mut watching = top(&[&address, "--json", "--interval-s", "0.1"]);
    let mut child = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|line| -> Value { serde_json::from_str(&line.unwrap()).unwrap() });
    let mut complaints = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let before = lines.next().unwrap()["run"].clone();
    server.terminate();
    let said = complaints.next().unwrap();
    assert!(said.contains(&address), "{said}");
    let dir = folder.path().join("only");
    let mut again = serve(&["--dir", dir.to_str().unwrap(), "--listen", "127.0.0.1:0", "--clients", &address]);
    again.env("ECOTONE_SERVER_LOG_FORMAT", "json");
    let server = Server::start(again);
    let after = lines.find(|line| line["run"] != before).unwrap();
    assert_eq!(after["servers"][0]["is_self"], true);
    assert!(complaints.any(|line| line.contains("answers again")));
    child.kill().unwrap();
    child.wait().unwrap();
    server.terminate();
}

#[test]
fn a_password_is_asked_for_and_taken_from_a_file_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\npassword = \"secret\"\n"));
    let address = server.listening.as_str();
    let (refused, _, said) = output(&mut top(&[address, "--once"]));
    assert!(!refused.status.success());
    assert!(said.contains("--password-file") && said.contains("ECOTONE_CLIENTS_PASSWORD"), "{said}");

    let file = folder.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let with_file = |path: &Path| output(&mut top(&[address, "--once", "--password-file", path.to_str().unwrap()]));
    assert!(with_file(&file).0.status.success());
    assert!(output(top(&[address, "--once"]).env("ECOTONE_CLIENTS_PASSWORD", "secret")).0.status.success());
    std::fs::write(&file, "wrong\n").unwrap();
    let (_, _, said) = with_file(&file);
    assert!(said.contains("does not take the password") && !said.contains("wrong\n"), "{said}");
    let (_, _, said) = with_file(&folder.path().join("none"));
    assert!(said.contains("--password-file"), "{said}");

    // A screen needs a terminal.
    let (refused, _, said) = output(&mut top(&[address]));
    assert!(!refused.status.success() && said.contains("--once"), "{said}");
    // The port of the federation is none for clients.
    let federation = federation_address(address);
    let (refused, _, said) = output(&mut top(&[&federation, "--once"]));
    assert!(!refused.status.success() && said.contains(&federation), "{said}");
    server.terminate();
}

/// The address for other servers, of a server that asks for the password `secret`.
fn federation_address(address: &str) -> String {
    let (_, said, _) = output(top(&[address, "--once", "--json"]).env("ECOTONE_CLIENTS_PASSWORD", "secret"));
    let answer: Value = serde_json::from_str(&said).unwrap();
    answer["servers"][0]["address"].as_str().unwrap().to_owned()
}

/// The screen on a terminal of its own, which util-linux' `script` makes.
struct Shown {
    child: Child,
    output: ChildStdout,
    screen_text: String,
}

impl Shown {
    fn start(address: &str, variables: &[(&str, &str)]) -> Shown {
        let program = env!("CARGO_BIN_EXE_ecotone");
        let mut command = Command::new("script");
        command.args([
            "-qefc",
            &format!("stty rows 24 cols 80; echo pid $$.; exec '{program}' top {address}"),
            "/dev/null",
        ]);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let mut shown = Shown { child, output, screen_text: String::new() };
        shown.until("quit");
        shown
    }

    /// Reads until `text` was shown.
    fn until(&mut self, text: &str) {
        while !self.screen_text.contains(text) {
            self.more();
        }
    }

    /// Reads what comes next.
    fn more(&mut self) {
        let mut bytes = [0; 4096];
        let read = self.output.read(&mut bytes).unwrap();
        assert!(read > 0, "it ended: {:?}", self.screen_text);
        self.screen_text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }

    /// Of the program itself.
    fn pid(&mut self) -> String {
        self.until("pid ");
        self.screen_text.split_once("pid ").unwrap().1.split_once('.').unwrap().0.to_owned()
    }

    fn keys(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// It has ended well and left the terminal as it was: the first screen, and a cursor.
    fn ends(mut self) -> String {
        self.output.read_to_string(&mut self.screen_text).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.screen_text);
        let (_, behind) = self.screen_text.rsplit_once("\u{1b}[?1049h").unwrap();
        assert!(behind.contains("\u{1b}[?1049l") && behind.contains("\u{1b}[?25h"), "{behind:?}");
        self.screen_text
    }
}

#[test]
fn keys_and_signals_end_the_screen_and_give_the_terminal_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = started(folder.path(), "only", &[]);
    let mut shown = Shown::start(&server.listening, &[]);
    shown.keys("h");
    shown.until("Ctrl-C");
    shown.keys("h");
    shown.keys("q");
    assert!(shown.ends().contains("\u{1b}[38;5;"), "it shows colours where it may");

    for signal in ["-TERM", "-HUP", "-INT", "-QUIT"] {
        let mut shown = Shown::start(&server.listening, &[("NO_COLOR", "1")]);
        let pid = shown.pid();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert!(!shown.ends().contains("\u{1b}[38;5;"), "{signal}");
    }
    server.terminate();
}

#[test]
fn a_screen_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = started(folder.path(), "only", &[]);
    let mut shown = Shown::start(&server.listening, &[]);
    let pid = shown.pid();
    let kill = |signal: &str, pid: &str| assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    kill("-TSTP", &pid);
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let began = Instant::now();
    while !state().contains(") T ") {
        assert!(began.elapsed() < PATIENCE, "it does not stop: {}", state());
        std::thread::yield_now();
    }
    // `script` stops with its child, whenever it hears of it, and lets it go on when it goes on
    // itself.
    let script = shown.child.id().to_string();
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_back.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                kill("-CONT", &script);
                kill("-CONT", &pid);
            }
        });
        shown.until("\u{1b}[?1049l");
        let before = shown.screen_text.len();
        while !shown.screen_text[before..].contains("\u{1b}[?1049h") || !shown.screen_text[before..].contains("quit") {
            shown.more();
        }
        is_back.store(true, Ordering::Relaxed);
    });
    shown.keys("q");
    shown.ends();
    server.terminate();
}
