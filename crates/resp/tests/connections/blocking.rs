//! What an event loop cannot do without waiting: it hands it on, keeps each client's order, and
//! serves everybody else meanwhile.

use crate::common;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use common::{Fixture, words};
use ecotone_engine::{
    CompactionOffload, Durability, Error as StoreError, OpenMode, RemoteJob, RemoteOutcome, Store, StoreSettings,
};
use ecotone_keyspace::{Blocking, CommitError, Slot, Tag, WriteGroup, layout};
use ecotone_resp::serve::{EventLoops, Listen};
use ecotone_resp::service::{Limits, Service};
use parking_lot::{Condvar, Mutex};

/// Compactions wait for it while it is shut.
#[derive(Default)]
struct Barrier {
    is_shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Barrier {
    fn shut(&self) {
        *self.is_shut.lock() = true;
    }

    fn open(&self) {
        *self.is_shut.lock() = false;
        self.opened.notify_all();
    }
}

/// Opens it in the end, also where a test fails: a server cannot be ended otherwise.
struct Opens(Arc<Barrier>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl CompactionOffload for Barrier {
    fn run(&self, _: RemoteJob) -> RemoteOutcome {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        RemoteOutcome::Local
    }

    fn cancel_all(&self) {
        self.open();
    }
}

/// Whether nothing has come for this client.
fn is_told_nothing(wire: &Wire) -> bool {
    wire.stream.set_nonblocking(true).unwrap();
    let looked = wire.stream.peek(&mut [0]);
    wire.stream.set_nonblocking(false).unwrap();
    matches!(looked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn requests(all: &[String]) -> Vec<u8> {
    all.iter().flat_map(|one| request(&words(one))).collect()
}

/// Long enough that a block of a table holds little else.
const FILLER: usize = 3000;

#[test]
fn a_write_of_what_is_not_in_memory_is_made_in_its_clients_order() {
    const KEYS: usize = 600;
    const WRITERS: usize = 3;
    // Not all tables are open: what the kernel has in memory of them is not asked for.
    let options = StoreSettings { durability: Durability::None, max_open_files: Some(64), ..StoreSettings::default() };
    let fixture = Fixture::with(options.clone());
    let mut client = fixture.client();
    let filler = "x".repeat(FILLER);
    for number in 0..KEYS {
        client.ask(&format!("SET counter:{number} {number}"));
        client.ask(&format!("HSET hash:{number} n {number} filler {filler}"));
        client.ask(&format!("SET text:{number} {filler}"));
    }
    client.ask("SET warm heat");
    let store = fixture.service.keyspace.only_store().unwrap();
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    drop(store);
    let Fixture { service, directory, .. } = fixture;
    drop(service);

    let served = Served::at(directory, Limits::default(), options, 1);
    let (service, address) = (&served.service, served.address());
    let is_cold = |key: &str| {
        let stored = layout::key(Slot::of(key.as_bytes()), key.as_bytes());
        matches!(service.keyspace.only_store().unwrap().try_get(&stored), Err(StoreError::WouldBlock))
    };
    assert_eq!(Wire::to(address).ask("GET warm"), "$4\r\nheat\r\n");
    let (cold, seen_waiting, writing) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(WRITERS));
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (cold, writing, reads, is_cold) = (&cold, &writing, &reads, &is_cold);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut wire = Wire::to(address);
                    for number in (writer..KEYS).step_by(WRITERS) {
                        let keys = ["counter", "hash", "text"].map(|kind| format!("{kind}:{number}"));
                        cold.fetch_add(keys.iter().filter(|key| is_cold(key)).count(), Ordering::Relaxed);
                        wire.send(&requests(&[
                            format!("INCR counter:{number}"),
                            "GET warm".into(),
                            format!("HINCRBY hash:{number} n 1"),
                            format!("SET own:{writer} {number:04}"),
                            format!("GET own:{writer}"),
                            format!("APPEND text:{number} y"),
                        ]));
                        let after = number + 1;
                        let expected = format!(
                            ":{after}\r\n$4\r\nheat\r\n:{after}\r\n+OK\r\n$4\r\n{number:04}\r\n:{}\r\n",
                            FILLER + 1
                        );
                        let replies: Vec<u8> = (0..6).flat_map(|_| wire.reply()).collect();
                        assert_eq!(String::from_utf8_lossy(&replies), expected);
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let mut wire = Wire::to(address);
            while writing.load(Ordering::Acquire) > 0 {
                assert_eq!(wire.ask("GET warm"), "$4\r\nheat\r\n");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while writing.load(Ordering::Acquire) > 0 {
                if service.statistics.waiting.load(Ordering::Relaxed) > 0 {
                    seen_waiting.store(true, Ordering::Relaxed);
                }
                std::thread::yield_now();
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        writing.store(0, Ordering::Release);
        ended.into_iter().for_each(|writer| writer.unwrap());
    });
    let cold = cold.into_inner();
    assert!(cold > KEYS / 2, "only {cold} keys were not in memory");
    assert!(seen_waiting.into_inner(), "no request was ever handed on");
    assert!(reads.into_inner() > 10);
    served.server.stop();
}

#[test]
fn who_waits_for_a_latch_keeps_its_order_and_holds_up_nobody() {
    let options = StoreSettings { durability: Durability::None, ..StoreSettings::default() };
    let served = Served::with(Limits::default(), options, 1);
    let mut waiter = Wire::to(served.address());
    let mut other = Wire::to(served.address());
    waiter.ask("SET before 1");
    let mut holder = WriteGroup::new(served.service.keyspace.clone());
    assert!(holder.hold(&[Slot::of(b"latched")], Blocking::Never));
    let pipeline = ["GET before", "INCR latched", "SET after 2", "MGET latched after"].map(String::from);
    waiter.send(&requests(&pipeline));
    until("it waits", || served.service.statistics.waiting.load(Ordering::Relaxed) == 1);
    for round in 0..200 {
        assert_eq!(other.ask(&format!("SET other {round}")), "+OK\r\n");
        assert_eq!(other.ask("EXISTS before other"), ":2\r\n");
        assert_eq!(other.ask("EXISTS after"), ":0\r\n", "nothing overtakes what came before it");
    }
    assert!(is_told_nothing(&waiter));
    drop(holder);
    let replies: Vec<u8> = (0..4).flat_map(|_| waiter.reply()).collect();
    assert_eq!(String::from_utf8_lossy(&replies), "$1\r\n1\r\n:1\r\n+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    served.server.stop();
}

/// Tables of level 0 at which RocksDB stops all writes.
const STOP_TABLES: usize = 4;

#[test]
fn those_who_wait_for_a_latch_leave_threads_to_those_who_read() {
    let listen =
        Listen { addresses: any_port(), event_loops: EventLoops::All(1), blocking_threads: 4, ..Listen::default() };
    let served = Served::listening(&listen, Limits::default());
    // Large, so that it is held still to be read.
    let members: Vec<String> = (0..300).map(|number| format!("{number} m{number}")).collect();
    assert_eq!(Wire::to(served.address()).ask(&format!("ZADD {{latched}}set {}", members.join(" "))), ":300\r\n");
    let mut holder = WriteGroup::new(served.service.keyspace.clone());
    assert!(holder.hold(&[Slot::of(b"latched")], Blocking::Never));
    let mut writers: Vec<Wire> = (0..8).map(|_| Wire::to(served.address())).collect();
    writers.iter_mut().for_each(|writer| writer.send(&request(&[b"INCR", b"latched"])));
    until("all of them wait", || served.service.statistics.waiting.load(Ordering::Relaxed) == 8);
    // Nor do those take them all who read before.
    let mut both: Vec<Wire> = (0..8).map(|_| Wire::to(served.address())).collect();
    both.iter_mut().for_each(|one| one.send(&requests(&["DBSIZE".into(), "INCR latched".into()])));
    // It takes a thread that may wait.
    for one in &mut both {
        assert_eq!(one.reply(), b":1\r\n");
    }
    // Nor those who read only, and find that they need a latch for it.
    let mut readers: Vec<Wire> = (0..8).map(|_| Wire::to(served.address())).collect();
    let reads = ["DBSIZE", "ZRANGE {latched}set 0 0", "ZRANGE {latched}set 1 1"].map(String::from);
    readers.iter_mut().for_each(|one| one.send(&requests(&reads)));
    for one in &mut readers {
        assert_eq!(one.reply(), b":1\r\n");
    }
    assert_eq!(Wire::to(served.address()).ask("DBSIZE"), ":1\r\n");
    drop(holder);
    for one in &mut readers {
        assert_eq!((one.reply(), one.reply()), (b"*1\r\n$2\r\nm0\r\n".to_vec(), b"*1\r\n$2\r\nm1\r\n".to_vec()));
    }
    writers.extend(both);
    let replies: BTreeSet<_> = writers.iter_mut().map(|writer| String::from_utf8(writer.reply()).unwrap()).collect();
    assert_eq!(replies, (1..=16).map(|number| format!(":{number}\r\n")).collect::<BTreeSet<_>>());
    served.server.stop();
}

#[test]
fn much_that_is_written_at_once_is_not_written_while_others_wait() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    assert_eq!(client.send_in(&mut group, &[b"SET", b"k", &vec![b'v'; 5 << 20]]), b"+OK\r\n");
    assert!(matches!(group.commit(Blocking::Never), Err(CommitError { error: StoreError::WouldBlock, .. })));
    group.commit(Blocking::Allowed).unwrap();
    assert_eq!(client.ask("STRLEN k"), format!(":{}\r\n", 5 << 20));
}

/// Writes of `value` that the store took before it had no more room: `filler:0` and so on.
fn fill(service: &Service, barrier: &Barrier, value: &[u8]) -> usize {
    for number in 0.. {
        let key = format!("filler:{number}");
        loop {
            let mut group = WriteGroup::new(service.keyspace.clone());
            assert!(group.hold(&[Slot::of(key.as_bytes())], Blocking::Allowed));
            group.keys(Blocking::Never).set(key.as_bytes(), Tag::STRING, None, value).unwrap();
            match group.commit(Blocking::Never) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.error, StoreError::WouldBlock),
            }
            // Until then it was a flush that it would have waited for.
            let tables = service.keyspace.only_store().unwrap().live_tables().unwrap();
            let in_level_zero = tables.iter().filter(|table| table.level == 0).count();
            if in_level_zero >= STOP_TABLES && barrier.waiting.load(Ordering::SeqCst) > 0 {
                return number;
            }
            std::thread::yield_now();
        }
    }
    unreachable!("no store takes writes without end")
}

/// A server whose compactions wait at a barrier, and whose store takes no more writes therefore.
struct Stopped {
    served: Served,
    options: StoreSettings,
    barrier: Opens,
    filled: usize,
}

const FILLING: [u8; 1000] = [b'f'; 1000];

impl Stopped {
    fn new(event_loops: usize) -> Self {
        let barrier = Opens(Arc::new(Barrier::default()));
        let options = StoreSettings {
            durability: Durability::EverySecond,
            memtable_bytes: 256 << 10,
            l0_compaction_trigger: 2,
            l0_slowdown_trigger: STOP_TABLES as u32,
            l0_stop_trigger: STOP_TABLES as u32,
            ..StoreSettings::default()
        };
        barrier.0.shut();
        let served = Served::offloading(options.clone(), barrier.0.clone(), event_loops);
        let mut wire = Wire::to(served.address());
        let fields: Vec<String> = (0..300).map(|number| format!("f{number} v")).collect();
        assert_eq!(wire.ask(&format!("HSET hash {}", fields.join(" "))), ":300\r\n");
        assert_eq!(wire.ask("SET first 1"), "+OK\r\n");
        let filled = fill(&served.service, &barrier.0, &FILLING);
        Self { served, options, barrier, filled }
    }

    /// Everything that was acknowledged is there when the store is opened again.
    fn opened_again(directory: tempfile::TempDir, options: StoreSettings, filled: usize) -> Fixture {
        // Threads that still wait have the store; the last one closes it.
        until("the store is closed", || Store::open(directory.path(), OpenMode::Open, options.clone()).is_ok());
        let fixture = Fixture::at(directory, options);
        let mut client = fixture.client();
        for number in 0..filled {
            assert_eq!(client.ask(&format!("STRLEN filler:{number}")), format!(":{}\r\n", FILLING.len()), "{number}");
        }
        assert_eq!(client.ask("HLEN hash"), ":300\r\n");
        drop(client);
        fixture
    }
}

/// Clients, each with a write that waits: one or more of each event loop, and more than one group.
fn late(address: SocketAddr, event_loops: usize) -> Vec<Wire> {
    let send = |number| {
        let mut wire = Wire::to(address);
        wire.send(&requests(&[format!("SET late:{number} 1"), format!("INCR late:{number}")]));
        wire
    };
    (0..4 * event_loops).map(send).collect()
}

#[test]
fn while_writes_are_stopped_reads_are_answered_and_no_writer_is_told_too_early() {
    const EVENT_LOOPS: usize = 2;
    let Stopped { served, options, barrier, filled } = Stopped::new(EVENT_LOOPS);
    let mut late = late(served.address(), EVENT_LOOPS);
    // Some of it is in memory, some is not.
    let mut readers: Vec<Wire> = (0..2 * EVENT_LOOPS).map(|_| Wire::to(served.address())).collect();
    for round in 0..50 {
        for reader in &mut readers {
            assert_eq!(reader.ask("PING"), "+PONG\r\n");
            assert_eq!(reader.ask("GET first"), "$1\r\n1\r\n", "round {round}");
            assert_eq!(reader.ask("HGET hash f299"), "$1\r\nv\r\n", "round {round}");
            assert_eq!(reader.ask(&format!("STRLEN filler:{round}")), ":1000\r\n", "round {round}");
            let newest = filled - 1 - round;
            assert_eq!(reader.ask(&format!("GETRANGE filler:{newest} 0 0")), "$1\r\nf\r\n", "round {round}");
        }
    }
    assert!(late.iter().all(is_told_nothing));
    barrier.0.open();
    for (number, wire) in late.iter_mut().enumerate() {
        assert_eq!([wire.reply(), wire.reply()].concat(), b"+OK\r\n:2\r\n");
        let reader = &mut readers[number % (2 * EVENT_LOOPS)];
        assert_eq!(reader.ask(&format!("GET late:{number}")), "$1\r\n2\r\n");
    }
    let Served { server, service, directory, .. } = served;
    server.stop();
    drop(service);
    let fixture = Stopped::opened_again(directory, options, filled);
    let mut client = fixture.client();
    for number in 0..late.len() {
        assert_eq!(client.ask(&format!("GET late:{number}")), "$1\r\n2\r\n");
    }
}

#[test]
fn a_server_stops_in_time_although_writes_are_stopped() {
    let Stopped { served, options, barrier, filled } = Stopped::new(1);
    // One that a thread which may wait carries out, to the commit: it copies a large hash.
    let mut copies = Wire::to(served.address());
    copies.send(&request(&words("COPY hash copied")));
    until("it waits", || served.service.statistics.waiting.load(Ordering::Relaxed) == 1);
    let late = late(served.address(), 1);
    let Served { server, service, directory, .. } = served;
    let (stopped, stops) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            server.stop();
            let _ = stopped.send(());
        });
        let in_time = stops.recv_timeout(Duration::from_secs(20));
        barrier.0.open();
        in_time.expect("a server that stops does not wait for a store that does not go on");
    });
    for mut wire in late.into_iter().chain([copies]) {
        let told = String::from_utf8_lossy(&wire.reply()).into_owned();
        let is_refused = told.starts_with("-ERR the server stops before this is done");
        assert!(told.is_empty() || is_refused, "nobody was told of what was not written: {told}");
    }
    drop(service);
    drop(Stopped::opened_again(directory, options, filled));
}

#[test]
fn writers_rest_where_the_store_asks_them_to_and_readers_do_not() {
    const KEYS: usize = 400;
    let barrier = Opens(Arc::new(Barrier::default()));
    // Segments that are garbage in part wait for a compaction to be copied by, and none comes.
    let mut gc = StoreSettings::default().gc;
    (gc.begin_ratio, gc.end_ratio) = (1.05, 1.01);
    (gc.forced_ratio, gc.urgent_ratio) = (1000.0, 2000.0);
    (gc.throttle_ratio, gc.max_throttle_ratio) = (1.1, 1.2);
    gc.min_garbage_bytes.0 = 1 << 20;
    let options = StoreSettings {
        durability: Durability::None,
        memtable_bytes: 1 << 20,
        l0_compaction_trigger: 2,
        l0_slowdown_trigger: 1000,
        l0_stop_trigger: 1000,
        gc,
        ..StoreSettings::default()
    }
    .with_separation(128);
    let served = Served::offloading(options, barrier.0.clone(), 1);
    let store = served.service.keyspace.only_store().unwrap().clone();
    let mut writer = Wire::to(served.address());
    let value = "v".repeat(20_000);
    let mut write = |number: usize| assert_eq!(writer.ask(&format!("SET key:{number} {value}")), "+OK\r\n");
    (0..KEYS).for_each(&mut write);
    (0..KEYS).step_by(2).for_each(&mut write);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    barrier.0.shut();
    until("a compaction waits, and writers are to rest", || {
        (0..KEYS).step_by(2).take(10).for_each(&mut write);
        store.flush(true).unwrap();
        store.throttle_delay(Duration::from_millis(10)) > Duration::from_millis(20)
    });
    let rested_ms = || store.value_log().unwrap().throttled_ms;
    let before_ms = rested_ms();
    let (is_writing, address) = (AtomicBool::new(true), served.address());
    let (reads, writes) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut wire = Wire::to(address);
            let mut reads = 0;
            while is_writing.load(Ordering::Acquire) {
                assert_eq!(wire.ask("STRLEN key:1"), ":20000\r\n");
                reads += 1;
            }
            reads
        });
        let mut writes = 0;
        let began = Instant::now();
        while rested_ms() < before_ms + 500 && began.elapsed() < Duration::from_secs(30) {
            write(writes % KEYS);
            writes += 1;
        }
        is_writing.store(false, Ordering::Release);
        (reader.join().unwrap(), writes)
    });
    assert!(rested_ms() >= before_ms + 500, "writers have rested for {} ms", rested_ms() - before_ms);
    assert!(reads > 2 * writes, "{reads} reads beside {writes} writes that rest");
    barrier.0.open();
    served.server.stop();
}
