//! A server with several shards, or none: started, stopped and changed while it runs.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ecotone_engine::{OpenMode, Store, StoreSettings};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_keyspace::gate::{CommitGate, Level, Place, Refused};
use ecotone_policy::power::PowerMode;
use ecotone_resp::host::Host;
use ecotone_server::config::Config;
use ecotone_server::{ClientOptions, Daemon, ServeOptions, ShardId, ShardOptions};

const MIB: u64 = 1 << 20;

/// What an idle shard more may take.
const MAX_IDLE_BYTES: u64 = 6 * MIB;

/// One test at a time: one of them measures the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const NOT_SERVED: &str = "-CLUSTERDOWN Hash slot not served";

fn start(folder: &Path, shards: Vec<ShardOptions>) -> Daemon {
    start_with(folder, shards, |_| ())
}

fn start_with(folder: &Path, shards: Vec<ShardOptions>, change: impl FnOnce(&mut ServeOptions)) -> Daemon {
    let of = |name: &str, value: &str| (name.into(), value.into());
    let environment = [
        of("ECOTONE_SERVER_DIR", folder.to_str().unwrap()),
        of("ECOTONE_FEDERATION_LISTEN", "127.0.0.1:0"),
        of("ECOTONE_CLIENTS_LISTEN", "127.0.0.1:0"),
        of("ECOTONE_HTTP_LISTEN", "off"),
    ];
    let config = Config::load(None, environment).unwrap();
    let mut options = config.serve_options().unwrap();
    options.clients = Some(ClientOptions {
        listen: config.listen().unwrap().unwrap(),
        config: config.clone(),
        shut_down: Arc::new(|| ()),
        panicked: Arc::new(|| panic!("a thread panicked")),
        allocator: None,
    });
    options.shards = shards;
    change(&mut options);
    Daemon::start(options, None).unwrap()
}

/// How often a shard comes and goes.
const ROUNDS: usize = 5;

/// Nobody keeps replies waiting: there is no other copy.
#[derive(Debug)]
struct Open;

impl CommitGate for Open {
    fn written(&self) -> Place {
        Place { epoch: 1, number: 0 }
    }

    fn answerable(&self, _: Level) -> Result<Place, Refused> {
        Ok(Place { epoch: 1, number: u64::MAX })
    }

    fn takes_writes(&self) -> bool {
        true
    }

    fn level(&self) -> Level {
        Level::Quorum
    }

    fn copies_with(&self, _: Place, _: bool) -> usize {
        0
    }

    fn clock_limit_ms(&self) -> u64 {
        u64::MAX
    }

    fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
}

/// Counts what it is told.
#[derive(Default)]
struct Told(AtomicU64);

impl WriteTap for Told {
    fn record(&self, _: TapEvent<'_>) -> std::io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn become_primary(daemon: &Daemon, id: u32, slots: (u16, u16)) -> ecotone_server::Result<()> {
    let told = Arc::<Told>::default();
    let made = daemon.become_primary(ShardId(id), &[slots], told.clone(), 1, Arc::new(Open));
    assert!(told.0.load(Ordering::Relaxed) > 0, "the opening is told");
    made
}

/// Shards from 1 on, each with as many slots.
fn dealt(count: u32) -> Vec<ShardOptions> {
    let each = 16_384 / count;
    let slots = |number: u32| vec![((number * each) as u16, ((number + 1) * each - 1) as u16)];
    (0..count).map(|number| ShardOptions { id: ShardId(number + 1), slots: slots(number) }).collect()
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn of(daemon: &Daemon) -> Self {
        let stream = TcpStream::connect(daemon.listening().unwrap().addresses[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// The reply to a request of words: a line, or the bytes of a string.
    fn ask(&mut self, request: &str) -> String {
        self.stream.get_mut().write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let Some(length) = line.strip_prefix('$').and_then(|length| length.trim().parse::<usize>().ok()) else {
            return line.trim_end().to_owned();
        };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

/// The number of INFO's line of this name.
fn of_info(daemon: &Daemon, name: &str) -> u64 {
    let host: &dyn Host = daemon.service().unwrap().host.as_ref();
    let lines = host.info("store").into_iter().flat_map(|section| section.lines);
    lines.into_iter().find(|line| line.0 == name).unwrap().1.parse().unwrap()
}

#[test]
fn shards_are_opened_again_where_they_were() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let daemon = start(folder.path(), dealt(4));
        let mut client = Client::of(&daemon);
        assert_eq!(client.ask("DBSIZE"), format!(":{}", round * 100));
        for number in 0..100 {
            assert_eq!(client.ask(&format!("SET {round}:{number} v{number}")), "+OK");
        }
        for number in 0..100 {
            assert_eq!(client.ask(&format!("GET {}:{number}", round / 2)), format!("v{number}"));
        }
        assert_eq!(daemon.stores().len(), 4);
        assert!(daemon.stores().iter().all(|store| store.counters().keys_written > 0), "all have some");
        let user_bytes: u64 = daemon.stores().iter().map(|store| store.counters().user_bytes()).sum();
        assert!(of_info(&daemon, "written_bytes_total") >= user_bytes);
        assert!(client.ask("BACKUP BEGIN").contains("4 shards"));
        daemon.stop().unwrap();
    }
    let folders = ["store", "shards/2", "shards/3", "shards/4"];
    assert!(folders.iter().all(|name| folder.path().join(name).join("CURRENT").is_file()));
    assert!(!folder.path().join("shards/1").exists());
}

#[test]
fn a_server_without_shards_serves_no_slots_until_it_gets_some() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), Vec::new());
    let mut client = Client::of(&daemon);
    assert_eq!(client.ask("SET a 1"), NOT_SERVED);
    assert_eq!((client.ask("DBSIZE").as_str(), client.ask("FLUSHALL").as_str()), (":0", "+OK"));
    assert!(!folder.path().join("store").exists());
    become_primary(&daemon, 7, (0, 16_383)).unwrap();
    assert_eq!((client.ask("SET a 1").as_str(), client.ask("GET a").as_str()), ("+OK", "1"));
    assert!(folder.path().join("shards/7/CURRENT").is_file());
    assert!(become_primary(&daemon, 8, (5, 5)).unwrap_err().to_string().contains("slot 5"));
    daemon.stop().unwrap();
    // What could not be added is opened by nobody, and what was has all.
    let daemon = start(folder.path(), vec![ShardOptions { id: ShardId(7), slots: vec![(0, 16_383)] }]);
    assert_eq!(Client::of(&daemon).ask("GET a"), "1");
    daemon.stop().unwrap();
}

#[test]
fn shards_come_and_go_while_clients_write() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), vec![ShardOptions { id: ShardId(1), slots: vec![(0, 8191)] }]);
    let (is_over, served, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let mut client = Client::of(&daemon);
            let (is_over, served, refused) = (&is_over, &served, &refused);
            scope.spawn(move || {
                for number in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    match client.ask(&format!("SET {writer}:{number} v")).as_str() {
                        "+OK" => served.fetch_add(1, Ordering::Relaxed),
                        NOT_SERVED => refused.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other}"),
                    };
                }
            });
        }
        let more = || {
            let seen = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < seen + 300 {
                std::thread::yield_now();
            }
        };
        more();
        let mut written = 0;
        for round in 0..ROUNDS {
            become_primary(&daemon, 2, (8192, 16_383)).unwrap();
            more();
            daemon.resign(ShardId(2)).unwrap();
            // Nobody here has it: another may.
            let folder = folder.path().join("shards/2");
            Store::open(&folder, OpenMode::Open, StoreSettings::default().with_separation(128)).unwrap();
            let now = of_info(&daemon, "written_bytes_total");
            assert!(now > written, "round {round}: {now} bytes after {written}");
            written = now;
            more();
        }
        become_primary(&daemon, 2, (8192, 16_383)).unwrap();
        more();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(refused.load(Ordering::Relaxed) > 0, "half of the slots were not there for a while");
    assert_eq!(Client::of(&daemon).ask("DBSIZE"), format!(":{}", served.load(Ordering::Relaxed)));
    daemon.stop().unwrap();
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    // Of the process alone, without pages of files.
    let kib = status.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    kib.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn an_idle_shard_takes_little_memory() {
    let _alone = alone();
    const MORE: u32 = 12;
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), vec![ShardOptions { id: ShardId(1), slots: vec![(0, 99)] }]);
    // What the first of all takes once in a process.
    become_primary(&daemon, 2, (100, 199)).unwrap();
    let before = resident_bytes();
    for id in 3..3 + MORE {
        let first = id as u16 * 100;
        become_primary(&daemon, id, (first, first + 99)).unwrap();
    }
    // Their threads have begun to rest.
    std::thread::sleep(Duration::from_secs(3));
    let each = resident_bytes().saturating_sub(before) / u64::from(MORE);
    println!("an idle shard takes {} KiB", each >> 10);
    assert!(each <= MAX_IDLE_BYTES, "{each} bytes");
    daemon.stop().unwrap();
}

/// The frequency of each of two cores of a fake machine, in kHz.
fn set_frequency(machine: &Path, khz: u32) {
    for core in 0..2 {
        let policy = machine.join(format!("sys/devices/system/cpu/cpufreq/policy{core}"));
        std::fs::create_dir_all(&policy).unwrap();
        std::fs::write(policy.join("scaling_cur_freq"), format!("{khz}\n")).unwrap();
    }
}

/// Cores of a machine that become fast once the first file of a store is touched.
struct Wakes(PathBuf);

impl WriteTap for Wakes {
    fn record(&self, _: TapEvent<'_>) -> std::io::Result<()> {
        set_frequency(&self.0, 2_200_000);
        Ok(())
    }
}

/// The store opens while its cores become fast, and not after it: here they never would.
#[test]
fn a_promoted_copy_opens_while_it_waits_for_its_cores() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine");
    set_frequency(&machine, 1_000_000);
    for core in 0..2 {
        let policy = machine.join(format!("sys/devices/system/cpu/cpufreq/policy{core}"));
        for (file, text) in [
            ("related_cpus", core.to_string()),
            ("cpuinfo_max_freq", "2200000".into()),
            ("scaling_min_freq", "1000000".into()),
            ("scaling_max_freq", "2200000".into()),
        ] {
            std::fs::write(policy.join(file), text + "\n").unwrap();
        }
    }
    let root = machine.clone();
    let daemon = start_with(&folder.path().join("data"), Vec::new(), |options| {
        options.machine_root = root;
        options.power.mode = PowerMode::Concerto;
    });
    let host = daemon.service().unwrap().host.clone();
    let said = |field: &str| {
        let lines = host.info("energy").into_iter().flat_map(|section| section.lines);
        lines.into_iter().find_map(|(name, value)| (name == field).then_some(value))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while said("power_divided").as_deref() != Some("1") {
        assert!(Instant::now() < deadline, "cores are not divided");
        std::thread::sleep(Duration::from_millis(5));
    }
    let wakes = Arc::new(Wakes(machine.clone()));
    daemon.become_primary(ShardId(1), &[(0, 16_383)], wakes, 1, Arc::new(Open)).unwrap();
    assert_eq!(said("power_promotions").as_deref(), Some("1"));
    assert_eq!(said("power_promotions_below_speed").as_deref(), Some("0"));
    // And where they never are it takes writes all the same.
    daemon.resign(ShardId(1)).unwrap();
    set_frequency(&machine, 1_000_000);
    become_primary(&daemon, 1, (0, 16_383)).unwrap();
    assert_eq!(Client::of(&daemon).ask("SET key value"), "+OK");
    assert_eq!(said("power_promotions_below_speed").as_deref(), Some("1"));
    daemon.stop().unwrap();
}
