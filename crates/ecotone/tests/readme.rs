//! What README, docs and contrib have a user run and look at, word for word.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Server, serve};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two checks whether a server that has said nothing has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where clients are served by default: README leaves it out.
const CLIENTS_PORT: &str = "6379";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// One below those that the system gives to whoever asks for any, as the servers themselves do:
/// nobody takes it in between.
fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Other processes that run these tests begin elsewhere.
    let ports = (0..COUNT).map(|_| FIRST + (std::process::id() * 16 + TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let mut ports = ports.map(|port| u16::try_from(port).unwrap());
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// The commands that a section of README shows, each in one line.
fn commands(heading: &str) -> Vec<String> {
    let readme = read("README.md");
    let (_, section) = readme.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = &section[..section.find("\n##").unwrap_or(section.len())];
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// A user's terminals: what README shows is run in a folder of its own, with free ports in place of
/// those that it names.
struct Terminals {
    folder: tempfile::TempDir,
    /// A port that README names, and the one that is taken for it.
    ports: Vec<(String, String)>,
    notify: UnixDatagram,
    /// What is exported, for all later commands.
    exports: String,
}

impl Terminals {
    fn new(commands: &[String]) -> Terminals {
        let named = commands.iter().flat_map(|command| command.split("127.0.0.1:").skip(1));
        let named = named.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        let named: BTreeSet<String> = named.chain([CLIENTS_PORT.to_owned()]).collect();
        let free = named.iter().map(|_| free_port().to_string());
        let ports = named.iter().cloned().zip(free).collect();
        let folder = tempfile::tempdir().unwrap();
        let notify = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(CHECK_INTERVAL)).unwrap();
        Terminals { folder, ports, notify, exports: String::new() }
    }

    fn port(&self, named: &str) -> &str {
        &self.ports.iter().find(|(name, _)| name == named).unwrap().1
    }

    fn path(&self, named: &str) -> PathBuf {
        self.folder.path().join(named)
    }

    fn shell(&self, command: &str) -> Command {
        let mut command = command.replace("/tmp/", &format!("{}/", self.folder.path().display()));
        for (named, free) in &self.ports {
            for before in ["127.0.0.1:", "-p "] {
                command = command.replace(&format!("{before}{named}"), &format!("{before}{free}"));
            }
        }
        let client = format!("redis-cli -p {} ", self.port(CLIENTS_PORT));
        let command = command.replace("redis-cli ", &client).replace("ecotone serve ", "exec ecotone serve ");
        let program = Path::new(env!("CARGO_BIN_EXE_ecotone")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &format!("{}{command}", self.exports)]).current_dir(self.folder.path());
        let ours = std::env::vars().filter(|(name, _)| name.starts_with("ECOTONE_")).map(|(name, _)| name);
        for name in ours.chain(["RUST_LOG".into(), "REDISCLI_AUTH".into(), "WATCHDOG_USEC".into()]) {
            shell.env_remove(name);
        }
        // Defaults on ports that are free; what README says wins over them. A workload goes without
        // clients only where nobody asked for any.
        if !command.contains(" --workload ") {
            shell.env("ECOTONE_CLIENTS_LISTEN", format!("127.0.0.1:{}", self.port(CLIENTS_PORT)));
        }
        shell.env("ECOTONE_FEDERATION_LISTEN", "127.0.0.1:0").env("ECOTONE_HTTP_LISTEN", "127.0.0.1:0");
        shell.env("PATH", path).env("NOTIFY_SOCKET", self.path("notify")).stdin(Stdio::null());
        shell
    }

    /// Runs what ends by itself: what it printed.
    fn run(&mut self, command: &str) -> String {
        let output = self.shell(command).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}: {}\n{printed}{complaint}", output.status);
        if command.starts_with("export ") {
            self.exports += &format!("{command}\n");
        }
        printed
    }

    /// Starts a server and waits until it says that it is ready.
    fn serve(&self, command: &str) -> Running {
        let mut shell = self.shell(command);
        let child = shell.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut running = Running(child);
        let (mut bytes, began) = ([0; 4096], Instant::now());
        loop {
            match self.notify.recv(&mut bytes) {
                Ok(length) if bytes[..length].starts_with(b"READY=1") => return running,
                Ok(_) => {}
                Err(_) => {
                    let has_ended = running.0.try_wait().unwrap().is_some();
                    if has_ended || began.elapsed() >= PATIENCE {
                        // It may have ended before.
                        let _ = running.0.kill();
                        panic!("{command}: {}", running.rest().1);
                    }
                }
            }
        }
    }
}

/// Killed should the test fail.
struct Running(Child);

impl Running {
    /// How it ended, and what it logged.
    fn rest(&mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.0.wait().unwrap(), log)
    }

    fn end(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
        let (status, log) = self.rest();
        assert!(status.success(), "{status}: {log}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn is_server(command: &str) -> bool {
    command.contains("ecotone serve ") && !command.contains("--print-config")
}

#[test]
fn what_readme_says_of_serving_clients_can_be_run_in_its_order() {
    let commands = commands("### Serving clients");
    let mut terminals = Terminals::new(&commands);
    let (mut running, mut servers, mut answers) = (None::<Running>, 0, 0);
    for command in &commands {
        if is_server(command) {
            if let Some(before) = running.take() {
                before.end();
            }
            running = Some(terminals.serve(command));
            servers += 1;
        } else {
            let printed = terminals.run(command);
            if command.starts_with("redis-cli ") {
                assert_eq!(printed, "OK\n", "{command}");
                answers += 1;
            }
        }
    }
    running.unwrap().end();
    assert_eq!((servers, answers), (4, 2), "{commands:?}");
}

#[test]
fn the_federation_by_hand_comes_together_and_works() {
    let commands = commands("### A federation by hand");
    let terminals = Terminals::new(&commands);
    assert!(commands.len() == 3 && commands.iter().all(|command| is_server(command)), "{commands:?}");
    let servers: Vec<Running> = commands.iter().map(|command| terminals.serve(command)).collect();

    let mut top = terminals.shell(&format!("exec ecotone top --json 127.0.0.1:{CLIENTS_PORT}"));
    let mut watching = Running(top.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let answers = BufReader::new(watching.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    // One a second.
    let shows =
        |answer: &String| ["\"a\"", "\"b\"", "\"c\""].iter().all(|name| answer.contains(&format!("\"name\":{name}")));
    let answers_before: Vec<String> =
        answers.take(PATIENCE.as_secs() as usize).take_while(|answer| !shows(answer)).collect();
    assert!(
        answers_before.len() < PATIENCE.as_secs() as usize,
        "ecotone top never shows all three: {:?}",
        answers_before.last()
    );
    drop(watching);
    servers.into_iter().for_each(Running::end);
    let records = std::fs::read_to_string(terminals.path("c.jsonl")).unwrap();
    assert!(records.contains("\"type\":\"sample\""), "{records}");
}

#[test]
fn the_service_takes_its_settings_from_its_file_alone() {
    let (unit, file) = (read("contrib/systemd/ecotone.service"), read("contrib/systemd/ecotone.toml"));
    let lines: Vec<&str> = unit.lines().collect();
    // Both would win over the file.
    assert!(lines.contains(&"ExecStart=/usr/local/bin/ecotone serve --config /etc/ecotone/ecotone.toml"), "{unit}");
    assert!(!lines.iter().any(|line| line.starts_with("Environment=")), "{unit}");
    // There a core dump would lie beside the store.
    assert!(!lines.iter().any(|line| line.starts_with("WorkingDirectory=")), "{unit}");
    assert!(file.contains("dir = \"/var/lib/ecotone\"") && lines.contains(&"StateDirectory=ecotone"));

    let folder = tempfile::tempdir().unwrap();
    let path = root().join("contrib/systemd/ecotone.toml");
    let mut command = serve(&["--config", path.to_str().unwrap(), "--clients", "127.0.0.1:0", "--http", "off"]);
    command.args(["--listen", "127.0.0.1:0"]).env("ECOTONE_SERVER_DIR", folder.path());
    // Which reads JSON only.
    Server::start(command).terminate();
}

#[test]
fn operations_tells_what_to_do_about_every_alert_and_readme_names_every_page() {
    let (alerts, operations, readme) =
        (read("contrib/prometheus/alerts.yml"), read("docs/operations.md"), read("README.md"));
    let alerts: BTreeSet<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let documented: BTreeSet<&str> = operations
        .split('`')
        .filter(|word| {
            let name = word.strip_prefix("Ecotone");
            name.is_some_and(|name| !name.is_empty() && name.chars().all(|character| character.is_ascii_alphabetic()))
        })
        .collect();
    assert_eq!(documented, alerts);

    let pages =
        std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for page in pages.filter(|name| name.ends_with(".md")) {
        assert!(readme.contains(&format!("| [docs/{page}](docs/{page}) |")), "README does not name docs/{page}");
    }
}
