//! The real program and clients that ask for as much memory as they can get: what the process has
//! resident stays near its limits, whoever asks for little goes on, and nothing is lost.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, configuration};

/// `clients.max_memory_bytes` of the server.
const CLIENT_BYTES: usize = 32 << 20;

/// The longest string where it is bounded by this device's memory.
const LONGEST_BYTES: usize = CLIENT_BYTES / 2;

/// What replies have beside it: the least that they must have.
const AROUND_BYTES: usize = 512 << 10;

/// What it may have resident more than before they came: what all clients may take; what is in no
/// account of theirs, which is what one value takes on each thread that reads one; what the
/// allocator holds on to; what the profile lets the store take.
const MAX_MORE_BYTES: usize = CLIENT_BYTES + THREADS * VALUE_BYTES + (96 << 20);

/// Threads of the server that have a value in hand for clients: two event loops, each with its
/// threads that may block and the one that writes what is long. Of what that writes there is one
/// copy more, for the store.
const THREADS: usize = 2 * (1 + 4 + 2);

/// The longest value in the store.
const VALUE_BYTES: usize = 4 << 20;

/// What a client may keep in any case.
const SMALL_BYTES: usize = 128 << 10;

/// Clients that want all at once.
const HOSTILE: usize = 16;

/// How long one of them waits for a reply. It is queued behind what all others asked for, which
/// keeps a slow machine busy for minutes: that is no fault of the server's, and `PATIENCE` is for
/// who asks for little.
const TURN_WITHIN: Duration = Duration::from_secs(600);

/// Each attack takes all the processors there are: two at a time would only wait longer.
static ATTACK: Mutex<()> = Mutex::new(());

/// Times that each of them asks for everything.
const ROUNDS: usize = 1;

/// Elements of each collection, of 100 bytes: less than a client may be owed, and far less than all
/// of them ask for together.
const ELEMENTS: usize = 40_000;

struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    fn of(server: &Server) -> Self {
        let stream = server.connect().0;
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// One that waits its turn.
    fn patient(server: &Server) -> Self {
        let client = Self::of(server);
        client.stream.set_read_timeout(Some(TURN_WITHIN)).unwrap();
        client
    }

    /// The first line of the reply; what follows is read and forgotten. Nothing where it is
    /// disconnected.
    fn reply(&mut self) -> Option<String> {
        let first = self.line()?;
        let mut left = self.skip(&first)?;
        while left > 0 {
            let line = self.line()?;
            left = left - 1 + self.skip(&line)?;
        }
        Some(first)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.reader.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
    }

    /// Skips the bytes behind `line`; how many answers follow it.
    fn skip(&mut self, line: &str) -> Option<usize> {
        let number = || line[1..].parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' if number() >= 0 => {
                std::io::copy(&mut (&mut self.reader).take(number() as u64 + 2), &mut std::io::sink()).ok()?;
                Some(0)
            }
            b'*' => Some(number().max(0) as usize),
            _ => Some(0),
        }
    }

    fn try_send(&mut self, request: &[u8]) -> Option<String> {
        // Who is refused while it sends may get the error all the same.
        let _ = self.stream.write_all(request);
        self.reply()
    }

    fn send(&mut self, arguments: &[&[u8]]) -> String {
        self.try_send(&request(arguments)).unwrap()
    }

    fn ask(&mut self, words: &str) -> String {
        self.send(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }
}

/// A figure of the process in bytes, as the kernel tells it.
fn status(server: &Server, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    1024 * line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap()
}

fn load(client: &mut Client) {
    for begin in (0..ELEMENTS).step_by(500) {
        let numbers: Vec<String> = (begin..begin + 500).map(|number| format!("{number:0100}")).collect();
        let members: Vec<&[u8]> = numbers.iter().map(String::as_bytes).collect();
        let pairs: Vec<&[u8]> =
            numbers.iter().flat_map(|number| [&number.as_bytes()[90..], number.as_bytes()]).collect();
        for (begin, arguments) in [
            (["SADD", "set"], &members),
            (["RPUSH", "list"], &members),
            (["HSET", "hash"], &pairs),
            (["ZADD", "sorted"], &pairs),
        ] {
            let reply = client.send(&[&begin.map(str::as_bytes)[..], &arguments[..]].concat());
            assert!(reply.starts_with(':'), "{reply}");
        }
    }
    let value = vec![b'v'; VALUE_BYTES];
    for number in 0..8 {
        assert_eq!(client.send(&[b"SET", format!("value{number}").as_bytes(), &value]), "+OK");
    }
    for number in 0..100 {
        assert_eq!(client.ask(&format!("SADD small {number:030}")), ":1");
    }
}

/// Everything that a small request can ask much by; `own` is a key of this client's.
fn wishes(own: &str) -> Vec<Vec<u8>> {
    let words = |words: String| request(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let named =
        |name: &str, key: &str, times: usize| request(&[&[name.as_bytes()], &vec![key.as_bytes(); times][..]].concat());
    let mut wishes: Vec<Vec<u8>> = [
        "SETRANGE OWN 536870911 x",
        "SETRANGE OWN 16777215 x",
        "SETRANGE OWN 100000000 x",
        "SETRANGE OWN 3000000 x",
        "APPEND OWN x",
        "EXPIRE OWN 1000",
        "DEL OWN",
        "SCAN 0 COUNT 1000000000",
        "SSCAN set 0 COUNT 1000000000",
        "HSCAN hash 0 COUNT 1000000000",
        "ZSCAN sorted 0 COUNT 1000000000",
        "SMEMBERS set",
        "HGETALL hash",
        "LRANGE list 0 -1",
        "ZRANGE sorted 0 -1",
        "SRANDMEMBER set 30000",
        "SRANDMEMBER set 10000",
        "SRANDMEMBER set 1000000000",
        "HRANDFIELD hash 30000 WITHVALUES",
        "HRANDFIELD hash -30000 WITHVALUES",
        "ZRANDMEMBER sorted 30000",
        "ZRANDMEMBER sorted -400000",
        "SUNIONSTORE OWN set small",
        "SPOP OWN 30000",
        "DEL OWN",
        "COPY sorted OWN",
        "ZPOPMIN OWN 30000",
        "ZREMRANGEBYRANK OWN 1 -1",
        "DEL OWN",
        "COPY list OWN",
        "LPOP OWN 30000",
        "DEL OWN",
        "GETEX value0 EX 1000000",
        "COPY value1 OWN",
        "RENAME OWN OWNNEW",
        "DEL OWNNEW",
        "CLIENT LIST",
        "KEYS *",
    ]
    .map(|wish| words(wish.replace("OWN", own)))
    .to_vec();
    wishes.push(named("SUNION", "small", 20_000));
    wishes.push(named("MGET", "value2", 500));
    wishes.push(request(&[b"CLIENT", b"SETNAME", &vec![b'n'; 1 << 20]]));
    wishes.push(request(&[b"CLIENT", b"SETINFO", b"LIB-NAME", &vec![b'n'; 1 << 20]]));
    wishes
}

/// The errors that a client may get that wants too much.
fn names_a_limit(reply: &str) -> bool {
    ["clients.max_memory_bytes", "clients.max_output_bytes", "proto-max-bulk-len", "256 bytes"]
        .iter()
        .any(|limit| reply.contains(limit))
}

#[test]
fn what_clients_ask_for_stays_within_the_memory_they_may_take() {
    let limits = format!("max_output_bytes = {}\nmax_argument_bytes = {LONGEST_BYTES}\n", LONGEST_BYTES + AROUND_BYTES);
    attack(&limits, 9_000_000);
}

/// The longest string and the longest reply are many times what all clients may take.
#[test]
fn where_one_argument_may_be_longer_than_all_memory_of_clients_that_holds_as_well() {
    attack("", 500_000_000);
}

/// Sets it when it is dropped, also where a test fails: who watches would watch for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Attacks a server with these limits of one client, which may announce an argument of so many
/// bytes.
fn attack(limits: &str, announced_bytes: usize) {
    let _alone = ATTACK.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let more = format!(
        "listen = \"127.0.0.1:0\"\nevent_loops = 2\nblocking_threads = 4\nmax_memory_bytes = {CLIENT_BYTES}\n{limits}\
         [store]\nprofile = \"small-device\"\n"
    );
    let server = Server::with(&configuration(folder.path(), &more));
    let mut small = Client::of(&server);
    load(&mut small);
    let before = status(&server, "VmRSS");
    // From here on the kernel notes the most that was resident.
    std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5").unwrap();
    let is_over = AtomicBool::new(false);
    let (done, refused) = std::thread::scope(|scope| {
        let (server, is_over) = (&server, &is_over);
        let over = Over(is_over);
        let hostile: Vec<_> = (0..HOSTILE)
            .map(|number| {
                scope.spawn(move || {
                    let mut client = Client::patient(server);
                    let wishes = wishes(&format!("own{number}"));
                    let (mut done, mut refused) = (0, 0);
                    for index in 0..ROUNDS * wishes.len() {
                        // Each begins elsewhere.
                        let wish = &wishes[(index + number * wishes.len() / HOSTILE) % wishes.len()];
                        // A long request may be refused before it has come whole, and then its
                        // client goes.
                        let is_long = wish.len() > SMALL_BYTES;
                        let reply =
                            if is_long { Client::patient(server).try_send(wish) } else { client.try_send(wish) };
                        if reply.as_deref().map_or(is_long, names_a_limit) {
                            refused += 1;
                        } else {
                            let reply = reply.expect("who sends little is not disconnected");
                            assert!(!reply.starts_with('-') || reply == "-ERR no such key", "{reply}");
                            done += 1;
                        }
                    }
                    (done, refused)
                })
            })
            .collect();
        let watching = scope.spawn(move || {
            let mut counted = 0;
            while !is_over.load(Ordering::Relaxed) {
                counted += 1;
                assert_eq!(small.ask("INCR counted"), format!(":{counted}"), "who asks for little goes on");
            }
            small
        });
        let sums: Vec<_> = hostile.into_iter().map(|client| client.join()).collect();
        // Others begin a request of many arguments, or of a long one, and send no end of it.
        let idle: Vec<Client> = (0..HOSTILE).map(|_| Client::of(server)).collect();
        for (number, client) in idle.iter().enumerate() {
            let begin = if number % 2 == 0 {
                [&b"*1000000\r\n"[..], &b"$0\r\n\r\n".repeat(200_000)].concat()
            } else {
                let announced = format!("*2\r\n$4\r\nECHO\r\n${announced_bytes}\r\n");
                [announced.as_bytes(), &vec![b'x'; 4_000_000]].concat()
            };
            // Who is refused is gone before it has sent all.
            let _ = (&client.stream).write_all(&begin);
        }
        drop(idle);
        // What they kept is free soon.
        let mut next = Client::of(server);
        let begin = Instant::now();
        while !next.ask("GET value0").starts_with('$') {
            assert!(begin.elapsed() < PATIENCE, "who left has left no memory");
        }
        // And others ask for much, over and over, and read none of it but the first byte, by which
        // it is known that they are owed the rest.
        let deaf: Vec<TcpStream> = (0..HOSTILE).map(|_| server.connect().0).collect();
        let questions =
            [request(&[b"GET", b"value0"]), request(&[b"LRANGE", b"list", b"0", b"-1"])].concat().repeat(50);
        deaf.iter().for_each(|mut stream| stream.write_all(&questions).unwrap());
        let is_answered = |mut stream: &TcpStream| {
            let mut first = [0];
            // Others are refused, or disconnected.
            stream.read(&mut first).is_ok() && first == *b"$"
        };
        let answered = deaf.iter().filter(|stream| is_answered(stream)).count();
        assert!(answered > 0, "nobody is owed anything");
        drop(over);
        let mut small = watching.join().unwrap();
        let sums = sums.into_iter().map(Result::unwrap).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        drop(deaf);
        for (words, count) in
            [("SCARD set", ELEMENTS), ("HLEN hash", ELEMENTS), ("ZCARD sorted", ELEMENTS), ("LLEN list", ELEMENTS)]
        {
            assert_eq!(small.ask(words), format!(":{count}"), "{words}");
        }
        for number in 0..8 {
            assert_eq!(small.ask(&format!("STRLEN value{number}")), format!(":{VALUE_BYTES}"));
        }
        sums
    });
    let max_more = status(&server, "VmHWM").saturating_sub(before);
    println!("{done} wishes were granted, {refused} refused; {max_more} bytes more than {before} were resident");
    assert!(
        max_more < MAX_MORE_BYTES,
        "{max_more} bytes more than {before} were resident, the most is {MAX_MORE_BYTES}"
    );
    assert!(done > 0 && refused > 2 * HOSTILE, "{done} {refused}");
    server.terminate();
}
