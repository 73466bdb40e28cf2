//! Which requests a copy of another server's shard answers here, for whom, and what becomes of the
//! others. The copy is another service's store, so what it shows is changed there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ecotone_keyspace::{Replica, ShardId, Slot};
use ecotone_resp::cluster_view::{ClusterMode, ClusterView, ReplicaView, ServerView, ShardView};
use ecotone_resp::execute::Step;
use ecotone_resp::host::ReplicaReads;
use parking_lot::Mutex;

use crate::common::{Fixture, TestClient};

/// Of the shard of which there is a copy here. The rest has no server.
const COPIED: (u16, u16) = (0, 8_191);

/// What can be read now.
#[derive(Default)]
struct Found(Mutex<Option<Arc<Replica>>>);

impl ReplicaReads for Found {
    fn find(&self, slot: Slot) -> Option<Arc<Replica>> {
        self.0.lock().clone().filter(|replica| replica.has(std::iter::once(slot)))
    }
}

/// A server with a copy, and the one with the primary, which has all keys.
struct Pair {
    primary: Fixture,
    here: Fixture,
    found: Arc<Found>,
    reads: Arc<AtomicU64>,
}

impl Pair {
    fn new() -> Pair {
        let (primary, here) = (Fixture::new(), Fixture::new());
        let shard = ShardView {
            id: format!("{:040x}", 1),
            slots: vec![COPIED],
            primary: 1,
            replicas: vec![ReplicaView::at(0)],
            epoch: 1,
            written_bytes: 0,
        };
        let servers =
            (1..=2).map(|number| ServerView::at(format!("{number:040x}"), format!("10.0.0.{number}"), 6379)).collect();
        here.service.cluster.publish(ClusterView::new(servers, 0, vec![shard], 7).unwrap());
        here.service.cluster.set_mode(ClusterMode { is_cluster: true, is_proxy: false });
        let pair = Pair { primary, here, found: Arc::default(), reads: Arc::default() };
        assert!(pair.here.service.replicas.set(pair.found.clone()).is_ok());
        pair
    }

    /// The copy can be read from now on; keys expire up to this time.
    fn open(&self, clock_limit_ms: u64) -> Arc<Replica> {
        let store = self.primary.service.keyspace.only_store().unwrap();
        let memory = self.here.service.keyspace.memory().clone();
        let shard = (ShardId(1), vec![COPIED]);
        let replica = Arc::new(
            Replica::open(shard, (store, Arc::default()), (0, clock_limit_ms), memory, self.reads.clone()).unwrap(),
        );
        *self.found.0.lock() = Some(replica.clone());
        replica
    }

    fn reader(&self) -> TestClient<'_> {
        let mut client = self.here.client();
        assert_eq!(client.ask("READONLY"), "+OK\r\n");
        client
    }
}

/// Two keys of one slot that is copied, and one of another such slot.
fn keys() -> (String, String, String) {
    let is_copied = |tag: &u32| (COPIED.0..=COPIED.1).contains(&Slot::of(tag.to_string().as_bytes()).number());
    let mut tags = (0..).filter(is_copied);
    let (first, second) = (tags.next().unwrap(), tags.next().unwrap());
    (format!("{{{first}}}a"), format!("{{{first}}}b"), format!("{{{second}}}"))
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn what_only_reads_is_answered_for_who_said_so_and_all_else_is_the_primarys() {
    let pair = Pair::new();
    let (a, b, other) = keys();
    let mut writer = pair.primary.client();
    let moved = format!("-MOVED {} 10.0.0.2:6379\r\n", Slot::of(a.as_bytes()).number());
    for request in ["SET a 5", "HSET b f v", "SET other 1"] {
        let request = request.replace('a', &a).replace(" b ", &format!(" {b} ")).replace("other", &other);
        assert!(!writer.ask(&request).starts_with('-'), "{request}");
    }
    let mut client = pair.reader();
    // Nothing is open yet.
    assert_eq!(client.ask(&format!("GET {a}")), moved);
    pair.open(u64::MAX);
    let mut plain = pair.here.client();
    assert_eq!(plain.ask(&format!("GET {a}")), moved, "it has not said READONLY");
    for (request, reply) in [
        (format!("GET {a}"), "$1\r\n5\r\n"),
        (format!("HGETALL {b}"), "*2\r\n$1\r\nf\r\n$1\r\nv\r\n"),
        (format!("EXISTS {a} {b} {b}none"), ":2\r\n"),
        (format!("MGET {a} {b}"), "*2\r\n$1\r\n5\r\n$-1\r\n"),
        (format!("TTL {a}"), ":-1\r\n"),
        (format!("HSCAN {b} 0"), "*2\r\n$1\r\n0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"),
    ] {
        assert_eq!(client.ask(&request), reply, "{request}");
        assert_eq!(client.at_once(&request), reply, "{request}");
    }
    let before = pair.reads.load(Ordering::Relaxed);
    assert_eq!(before, 12);
    for request in
        ["SET a 6", "INCR a", "GETDEL a", "GETEX a PERSIST", "DEL a b", "ZRANGE b 0 -1", "WATCH a", "EXPIRE a 9"]
    {
        let request = request.split(' ').map(|word| match word {
            "a" => a.as_str(),
            "b" => b.as_str(),
            word => word,
        });
        let request: Vec<&str> = request.collect();
        let reply = client.ask(&request.join(" "));
        assert!(reply.starts_with("-MOVED "), "{request:?}: {reply}");
    }
    assert!(client.ask(&format!("MGET {a} {other}")).starts_with("-CROSSSLOT "));
    assert_eq!(pair.reads.load(Ordering::Relaxed), before);
    assert_eq!(writer.ask(&format!("GET {a}")), "$1\r\n5\r\n", "nothing was written");
    // What the primary writes is there, and READWRITE takes all back.
    writer.ask(&format!("SET {a} 7"));
    assert_eq!(client.ask(&format!("GET {a}")), "$1\r\n7\r\n");
    assert_eq!(client.ask("READWRITE"), "+OK\r\n");
    assert_eq!(client.ask(&format!("GET {a}")), moved);
}

#[test]
fn a_transaction_of_reads_is_answered_and_one_with_a_write_is_not() {
    let pair = Pair::new();
    let (a, b, _) = keys();
    pair.primary.client().ask(&format!("MSET {a} 1 {b} 2"));
    pair.open(u64::MAX);
    let mut client = pair.reader();
    let mut says = |request: String| client.ask(&request);
    assert_eq!(says("MULTI".into()), "+OK\r\n");
    assert_eq!(says(format!("GET {a}")), "+QUEUED\r\n");
    assert_eq!(says(format!("STRLEN {b}")), "+QUEUED\r\n");
    assert_eq!(says("EXEC".into()), "*2\r\n$1\r\n1\r\n:1\r\n");
    assert_eq!(says("MULTI".into()), "+OK\r\n");
    assert_eq!(says(format!("GET {a}")), "+QUEUED\r\n");
    assert!(says(format!("SET {b} 3")).starts_with("-MOVED "));
    assert!(says("EXEC".into()).starts_with("-EXECABORT "));
    // Where the copy goes between the commands and EXEC.
    assert_eq!(says("MULTI".into()), "+OK\r\n");
    assert_eq!(says(format!("GET {a}")), "+QUEUED\r\n");
    *pair.found.0.lock() = None;
    assert!(says("EXEC".into()).starts_with("-MOVED "));
    assert!(says("EXEC".into()).starts_with("-ERR EXEC without MULTI"));
}

#[test]
fn an_event_loop_waits_for_no_copy_and_one_that_has_ended_answers_nothing() {
    let pair = Pair::new();
    let (a, ..) = keys();
    pair.primary.client().ask(&format!("SET {a} 1"));
    let replica = pair.open(u64::MAX);
    let mut client = pair.reader();
    let request = format!("GET {a}");
    let changed = replica.change(Duration::from_secs(60), || client.step_at_once(&request));
    assert_eq!(changed, Some(Step::WouldBlock));
    {
        let _held = replica.read(false).unwrap();
        assert!(replica.change(Duration::from_millis(1), || ()).is_none(), "somebody reads");
    }
    assert_eq!(client.at_once(&request), "$1\r\n1\r\n");
    replica.end();
    assert!(client.at_once(&request).starts_with("-MOVED "));
    assert!(client.ask(&request).starts_with("-MOVED "));
}

#[test]
fn keys_expire_by_the_clock_of_the_stream() {
    let pair = Pair::new();
    let (a, ..) = keys();
    let now_ms = now_ms();
    let expires_ms = now_ms + 100_000;
    pair.primary.client().ask(&format!("SET {a} 1 PXAT {expires_ms}"));
    let replica = pair.open(expires_ms - 1);
    let mut client = pair.reader();
    assert_eq!(client.ask(&format!("EXISTS {a}")), ":1\r\n");
    // The system's clock is not that far, whatever the stream allows.
    replica.limit_clock(expires_ms + 10);
    assert_eq!(client.ask(&format!("EXISTS {a}")), ":1\r\n");
    // One that is opened anew shows no earlier time than one before.
    let store = pair.primary.service.keyspace.only_store().unwrap();
    let (shard, memory) = ((ShardId(1), vec![COPIED]), pair.here.service.keyspace.memory().clone());
    let later = Replica::open(shard, (store, Arc::default()), (expires_ms, 5), memory, Arc::default()).unwrap();
    *pair.found.0.lock() = Some(Arc::new(later));
    assert_eq!(client.ask(&format!("EXISTS {a}")), ":0\r\n");
}
