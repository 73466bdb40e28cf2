//! Joules and frequencies of a running server, on a machine whose files are the test's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{self, cluster};
use crate::common::{PATIENCE, Server, configuration, serve};
use crate::copies::Load;

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";

/// Two cores, each with a frequency of its own.
fn machine(root: &Path) {
    let write = |file: &str, text: &str| {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    write("proc/sys/kernel/random/boot_id", "b1");
    write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0 0 0");
    for core in 0..2 {
        for (name, text) in [
            ("related_cpus", core.to_string()),
            ("affected_cpus", core.to_string()),
            ("cpuinfo_max_freq", "2200000".into()),
            ("cpuinfo_min_freq", "1000000".into()),
            ("scaling_min_freq", "1000000".into()),
            ("scaling_max_freq", "2200000".into()),
            ("scaling_cur_freq", "2200000".into()),
        ] {
            write(&format!("{CPUFREQ}/policy{core}/{name}"), &text);
        }
    }
}

fn limit(root: &Path, core: u32) -> u64 {
    let path = root.join(format!("{CPUFREQ}/policy{core}/scaling_max_freq"));
    // Who writes to a file, unlike to the kernel, empties it first.
    let mut looks = std::iter::repeat_with(|| fs::read_to_string(&path).unwrap()).take(1_000_000);
    looks.find(|text| !text.is_empty()).unwrap().trim().parse().unwrap()
}

fn start(file: &Path, root: &Path, mode: &str) -> Server {
    let root = root.to_str().unwrap();
    Server::start(serve(&["--config", file.to_str().unwrap(), "--machine-root", root, "--power-mode", mode]))
}

fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what} has not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Of each thread its name, and the cores that it may run on.
fn threads(process: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let of = |task: PathBuf| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let line =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
        Some((line("Name:")?, line("Cpus_allowed_list:")?))
    };
    tasks.filter_map(|task| of(task.path())).collect()
}

#[test]
fn a_server_in_concerto_slows_a_core_and_a_killed_one_is_mended_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("machine");
    machine(&root);
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let mut server = start(&file, &root, "concerto");
    until("a slow core", || limit(&root, 0).min(limit(&root, 1)) == 1_000_000);
    let slow = u32::from(limit(&root, 1) == 1_000_000);
    assert_eq!(limit(&root, 1 - slow), 2_200_000, "the other one stays fast");
    if has_two_cores() {
        let fast = (1 - slow).to_string();
        let waits = |threads: Vec<(String, String)>| {
            let mut serving = threads.into_iter().filter(|thread| thread.0.starts_with("ecotone-loop")).peekable();
            serving.peek().is_some() && serving.all(|thread| thread.1 == fast)
        };
        until("event loops on the fast core", || waits(threads(server.child.id())));
    }
    let ask = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        let output = command.args(["energy", &server.listening]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    until("a second that was counted", || ask(&[]).contains("mode concerto, by cpufreq"));
    assert!(ask(&[]).contains("there is no meter"));
    let said: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    let parts = said["by_duty"].as_object().unwrap().values().map(|of| of["joules"].as_f64().unwrap());
    let joules = said["joules"].as_f64().unwrap();
    assert!(joules > 0.0 && (parts.sum::<f64>() - joules).abs() < 1e-6 * joules, "{said}");
    assert_eq!((&said["source"], &said["mode"]), (&"model".into(), &"concerto".into()));

    server.signal("-KILL");
    server.child.wait().unwrap();
    assert_eq!(limit(&root, slow), 1_000_000);
    let server = start(&file, &root, "all-high");
    assert_eq!((limit(&root, 0), limit(&root, 1)), (2_200_000, 2_200_000));
    server.terminate();

    // One that ends in order mends it itself.
    let server = start(&file, &root, "all-low");
    until("two slow cores", || limit(&root, 0).max(limit(&root, 1)) == 1_000_000);
    server.terminate();
    assert_eq!((limit(&root, 0), limit(&root, 1)), (2_200_000, 2_200_000));
}

/// Whether threads may be bound here as the tests expect it.
fn has_two_cores() -> bool {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let has = own.lines().any(|line| line.starts_with("Cpus_allowed_list:") && line.trim_end().ends_with("\t0-1"));
    if !has {
        eprintln!("SKIPPED: this machine has not two cores, so nobody is bound to them");
    }
    has
}

/// Promotions and demotions while clients write: at every look threads are where their roles belong.
#[test]
fn where_threads_run_follows_who_is_the_primary() {
    if !has_two_cores() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let root = |name: &str| {
        let root = folder.join(format!("machine-{name}"));
        machine(&root);
        root.to_str().unwrap().to_owned()
    };
    let text = cluster::text;
    cluster(&["init", "--dir", text(&folder.join("a")), "--name", "a", "--zone", "a"]);
    let first = cluster::Server::start(folder, "a", None, &["--machine-root", &root("a")]);
    cluster::until("the first one leads", || first.status()["leader"]["name"] == "a");
    let second = first.joined_with(folder, "b", &["--machine-root", &root("b")]);
    cluster::until("both are active", || {
        let status = first.status();
        let servers = status["servers"].as_array().unwrap();
        servers.len() == 2 && servers.iter().all(|server| server["state"] == "active" && server["clients"] != "")
    });
    cluster(&["create", &first.clients, "--shards", "1", "--copies", "2", "--level", "all"]);
    cluster(&["set", &first.clients, "power.mode", "concerto"]);
    let is_so = |primary: &str| {
        let shard = first.status()["shards"][0].clone();
        let copies = shard["copies"].as_array().unwrap();
        shard["primary"] == primary && copies.len() == 2 && copies.iter().all(|copy| copy["in_sync"] == true)
    };
    let primary_now = || first.status()["shards"][0]["primary"].as_str().unwrap_or_default().to_owned();
    cluster::until("both copies are in sync", || is_so(&primary_now()));
    let mut primary = primary_now();
    let load = Load::start(&[first.clients.clone(), second.clients.clone()]);
    for _ in 0..3 {
        let whole = |server: &cluster::Server| {
            let root = folder.join(format!("machine-{}", server.name));
            let limits = [limit(&root, 0), limit(&root, 1)];
            let Some(slow) = limits.iter().position(|khz| *khz == 1_000_000) else { return false };
            let (slow, fast) = (slow.to_string(), (1 - slow).to_string());
            let threads = threads(server.process());
            let of = |name: &str| threads.iter().filter(|thread| thread.0.starts_with(name)).collect::<Vec<_>>();
            // A read runs on an event loop, at a replica too.
            let reads = of("ecotone-loop");
            let copies: Vec<&String> =
                threads.iter().filter(|thread| thread.0 == "ecotone-copy").map(|thread| &thread.1).collect();
            let place = if server.name == primary { "0-1" } else { slow.as_str() };
            !reads.is_empty() && reads.iter().all(|thread| thread.1 == fast) && copies == [place]
        };
        cluster::until("threads are where they belong", || whole(&first) && whole(&second));
        load.more(300);
        // And they stay there, with all that writes bring with them.
        for _ in 0..5 {
            for server in [&first, &second] {
                let limits = [0, 1].map(|core| limit(&folder.join(format!("machine-{}", server.name)), core));
                let Some(slow) = limits.iter().position(|khz| *khz == 1_000_000) else { panic!("{limits:?}") };
                let slow = slow.to_string();
                for (name, cores) in threads(server.process()) {
                    let is_waited_for = name.starts_with("ecotone-loop") || name == "rocksdb:high";
                    assert!(!(is_waited_for && cores == slow), "{name} of {} on the slow core {slow}", server.name);
                }
            }
        }
        let to = if primary == "a" { "b" } else { "a" };
        // Under load a copy may leave the set for a moment, and is handed nothing then.
        cluster::until("it is handed over", || {
            cluster::ecotone(&["cluster", "switch-over", &first.clients, "1", "--to", to]).status.success()
        });
        cluster::until("the other one is the primary", || is_so(to));
        primary = to.to_owned();
    }
    load.end();
    // A comparison of all files is work of its own, on slow cores.
    cluster(&["repair", &first.clients, "1"]);
    let spent = |server: &cluster::Server, duty: &str| {
        let said = server.ask("INFO energy");
        let field = format!("energy_joules_{duty}:");
        said.lines().find_map(|line| line.strip_prefix(&field)?.trim().parse::<f64>().ok()).unwrap()
    };
    for server in [&first, &second] {
        assert!(spent(server, "scrub") > 0.0, "{} has compared nothing", server.name);
        assert!(spent(server, "replica") > 0.0, "{} has applied nothing", server.name);
    }
}

#[test]
fn nothing_to_restore_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    let output = command.args(["energy", "--restore", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 limits of frequencies restored\n");
}
