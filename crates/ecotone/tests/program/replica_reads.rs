//! Reads at replicas on real processes: a client that has said `READONLY` sees there what was
//! acknowledged, but for what is newer than the limit of staleness, and never anything older than
//! what it has seen; the replica goes on as the primary when that is killed.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::cluster::{PATIENCE, Server, cluster, until};
use super::copies::{Client, addresses, federation, shards};

/// No read shows what was overwritten so long ago.
const MAX_STALENESS: Duration = Duration::from_millis(1_000);

/// The value with a number: long enough to be a separated one, now and then.
fn value(number: u64) -> String {
    format!("{number}:{}", "v".repeat(if number.is_multiple_of(3) { 300 } else { 10 }))
}

fn number_of(reply: &str) -> u64 {
    let number = reply.split(':').next().unwrap().parse().unwrap_or_else(|_| panic!("{reply}"));
    assert_eq!(value(number), reply);
    number
}

/// Overwrites one key, again and again, with ever greater numbers.
struct Counting {
    /// What was acknowledged when.
    acknowledged: Arc<Mutex<Vec<(u64, Instant)>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Counting {
    fn start(addresses: &[String]) -> Counting {
        let (acknowledged, ends) = (Arc::<Mutex<Vec<(u64, Instant)>>>::default(), Arc::new(AtomicBool::new(false)));
        let (note, stop, mut client) = (acknowledged.clone(), ends.clone(), Client::new(addresses));
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                assert_eq!(client.ask(&["SET", "{one}count", &value(number)]), "+OK");
                note.lock().unwrap().push((number, Instant::now()));
            }
        });
        Counting { acknowledged, ends, thread: Some(thread) }
    }

    /// The greatest number that was acknowledged by `when`.
    fn by(&self, when: Instant) -> u64 {
        let acknowledged = self.acknowledged.lock().unwrap();
        let place = acknowledged.partition_point(|(_, at)| *at <= when);
        place.checked_sub(1).map_or(0, |last| acknowledged[last].0)
    }

    fn end(mut self) -> u64 {
        self.ends.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        self.by(Instant::now())
    }
}

/// A client of one server.
struct Reader {
    client: Client,
    address: String,
    /// The greatest number that it was shown.
    seen: u64,
    answered: u64,
}

impl Reader {
    fn new(server: &Server) -> Reader {
        let address = server.clients.clone();
        Reader { client: Client::new(std::slice::from_ref(&address)), address, seen: 0, answered: 0 }
    }

    fn say(&mut self, words: &[&str]) -> String {
        self.client.ask_at(&self.address, words).unwrap()
    }

    /// The same until it is answered here: a machine that is busy may be too far behind for a while.
    fn ask(&mut self, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let reply = self.say(words);
            if !reply.starts_with("-MOVED ") {
                return reply;
            }
            assert!(began.elapsed() < PATIENCE, "{words:?} is not answered here: {reply}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A transaction of two commands that are answered by integers; none where it is not carried
    /// out here.
    fn transaction(&mut self, both: [&[&str]; 2]) -> Option<[String; 2]> {
        assert_eq!(self.say(&["MULTI"]), "+OK");
        for words in both {
            let reply = self.say(words);
            assert!(reply == "+QUEUED" || reply.starts_with("-MOVED "), "{reply}");
        }
        let reply = self.say(&["EXEC"]);
        assert!(reply == "*2" || reply.starts_with("-MOVED ") || reply.starts_with("-EXECABORT "), "{reply}");
        (reply == "*2").then(|| [self.line(), self.line()])
    }

    /// The next line of what it was answered.
    fn line(&mut self) -> String {
        self.client.line(&self.address).unwrap()
    }

    /// `INFO replication`.
    fn info(&mut self) -> String {
        self.say(&["INFO", "replication"])
    }

    /// Reads the number, if it is answered, and compares it with what was acknowledged.
    fn read(&mut self, counting: &Counting) {
        let at_least = Instant::now().checked_sub(MAX_STALENESS).map_or(0, |when| counting.by(when));
        let Ok(reply) = self.client.ask_at(&self.address, &["GET", "{one}count"]) else {
            // As primary it waits for the copies that are left, longer than it is waited for here.
            self.client = Client::new(std::slice::from_ref(&self.address));
            assert_eq!(self.say(&["READONLY"]), "+OK");
            return;
        };
        if let Some(refusal) = reply.strip_prefix('-') {
            let word = refusal.split(' ').next().unwrap();
            assert!(["MOVED", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "TIMEOUT"].contains(&word), "{reply}");
            return;
        }
        let number = if reply.starts_with("$-1") { 0 } else { number_of(&reply) };
        assert!(number >= at_least, "{number} was overwritten long ago: {at_least}");
        assert!(number >= self.seen, "{number} is shown after {}", self.seen);
        (self.seen, self.answered) = (number, self.answered + 1);
    }
}

fn wait_for_answers(reader: &mut Reader, counting: &Counting, count: u64) {
    let (began, wanted) = (Instant::now(), reader.answered + count);
    while reader.answered < wanted {
        reader.read(counting);
        assert!(began.elapsed() < PATIENCE, "{} of {wanted} reads are answered", reader.answered);
    }
}

#[test]
fn a_replica_shows_what_was_acknowledged_and_never_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = federation(directory.path(), &["a", "b", "c"], &["--shards", "1", "--copies", "3"], 3);
    let limit = MAX_STALENESS.as_millis().to_string();
    cluster(&["set", &servers[0].clients, "replication.max_staleness_ms", &limit]);
    let everywhere = addresses(&servers);
    let counting = Counting::start(&everywhere);
    let mut all = Client::new(&everywhere);
    for (words, said) in [
        (&["HSET", "{one}hash", "a", "1", "b", "2"][..], ":2"),
        (&["RPUSH", "{one}list", "x", "y"], ":2"),
        (&["SADD", "{one}set", "m"], ":1"),
        (&["SET", "{one}gone", "soon", "PX", "300"], "+OK"),
    ] {
        assert_eq!(all.ask(words), said, "{words:?}");
    }

    let status = servers[0].status();
    let primary = shards(&status)[0]["primary"].as_str().unwrap().to_owned();
    let replicas: Vec<&Server> = servers.iter().filter(|server| server.name != primary).collect();
    let mut readers: Vec<Reader> = replicas.iter().map(|server| Reader::new(server)).collect();
    for reader in &mut readers {
        assert!(reader.say(&["GET", "{one}count"]).starts_with("-MOVED "), "it has not said READONLY");
        assert_eq!(reader.say(&["READONLY"]), "+OK");
        wait_for_answers(reader, &counting, 300);
        assert!(reader.say(&["SET", "{one}count", "9"]).starts_with("-MOVED "), "no write is made at a replica");
        assert!(reader.say(&["GETDEL", "{one}count"]).starts_with("-MOVED "));
        for (words, said) in [
            (&["HGET", "{one}hash", "b"][..], "2"),
            (&["LINDEX", "{one}list", "-1"], "y"),
            (&["SISMEMBER", "{one}set", "m"], ":1"),
            (&["EXISTS", "{one}list", "{one}set", "{one}none"], ":2"),
            (&["STRLEN", "{one}none"], ":0"),
        ] {
            assert_eq!(reader.ask(words), said, "{words:?}");
        }
        until("a transaction is answered", || {
            let found = reader.transaction([&["HLEN", "{one}hash"], &["STRLEN", "{one}none"]]);
            assert!(found.as_ref().is_none_or(|found| *found == [":2", ":0"]), "{found:?}");
            found.is_some()
        });
        until("the key has expired", || reader.say(&["EXISTS", "{one}gone"]) == ":0");
        assert_eq!(reader.say(&["READWRITE"]), "+OK");
        assert!(reader.say(&["GET", "{one}count"]).starts_with("-MOVED "));
        assert_eq!(reader.say(&["READONLY"]), "+OK");
        let info = reader.info();
        for part in ["replica_reads_open:1", "replica_reads_max_staleness_ms:"] {
            assert!(info.contains(part), "{part}: {info}");
        }
    }

    // Whoever is the primary next has shown a part of it as a replica.
    let place = servers.iter().position(|server| server.name == primary).unwrap();
    let mut dead = servers.remove(place);
    dead.kill();
    let before = counting.by(Instant::now());
    let began = Instant::now();
    while counting.by(Instant::now()) < before + 200 {
        readers.iter_mut().for_each(|reader| reader.read(&counting));
        assert!(began.elapsed() < PATIENCE, "writes go on once another one is the primary");
    }
    for reader in &mut readers {
        wait_for_answers(reader, &counting, 100);
    }
    let last = counting.end();
    assert_eq!(number_of(&all.ask(&["GET", "{one}count"])), last);
    // One of them answers as the primary, and takes writes.
    let next = value(last + 1);
    let answers = readers.iter_mut().map(|reader| reader.say(&["SET", "{one}count", &next]));
    assert_eq!(answers.filter(|said| said == "+OK").count(), 1);
}

#[test]
fn a_replica_that_may_be_too_stale_sends_readers_to_the_primary() {
    let directory = tempfile::tempdir().unwrap();
    let servers = federation(directory.path(), &["a", "b", "c"], &["--shards", "1", "--copies", "3"], 3);
    assert_eq!(Client::new(&addresses(&servers)).ask(&["SET", "key", "value"]), "+OK");
    let status = servers[0].status();
    let primary = shards(&status)[0]["primary"].as_str().unwrap().to_owned();
    let place = servers.iter().position(|server| server.name != primary).unwrap();
    let mut reader = Reader::new(&servers[place]);
    assert_eq!(reader.say(&["READONLY"]), "+OK");
    until("it is answered", || reader.say(&["GET", "key"]) == "value");
    // Nobody is so fresh all the time.
    cluster(&["set", &servers[place].clients, "replication.max_staleness_ms", "1"]);
    until("the limit is known, and kept", || {
        (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            reader.say(&["GET", "key"]).starts_with("-MOVED ")
        })
    });
    cluster(&["set", &servers[place].clients, "replication.max_staleness_ms"]);
    until("there is none again", || (0..50).all(|_| reader.say(&["GET", "key"]) == "value"));
}
