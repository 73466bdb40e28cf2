//! SIGKILL under load: whatever a client was told is there when the server comes up again, and a transaction is there whole or not at all.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Server, configuration};

/// Kills of a server.
const KILLS: u64 = 24;

/// A server that is told to end does so within this, however busy the machine and its store.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Writers of each family.
const WRITERS: u64 = 2;

/// A client that waits for each reply.
struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn of(server: &Server) -> Self {
        let stream = server.connect().0;
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// The reply to a request in words: its bytes without the type, items of an array one behind the other. `None` where the server is gone.
    fn ask(&mut self, words: &str) -> Option<String> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.write_all(request.as_bytes()).ok()?;
        self.reply()
    }

    fn reply(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 || !line.ends_with("\r\n") {
            return None;
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "$" if rest == "-1" => Some("nothing".into()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                bytes.truncate(bytes.len() - 2);
                Some(String::from_utf8(bytes).unwrap())
            }
            "*" => {
                let items: Option<Vec<String>> = (0..rest.parse::<usize>().unwrap()).map(|_| self.reply()).collect();
                Some(items?.join(" "))
            }
            "-" => panic!("refused: {rest}"),
            _ => Some(rest.into()),
        }
    }
}

/// What one writer does for its `number`th write, as requests, and what they leave; `who` names its keys.
struct Family {
    write: fn(who: &str, number: u64) -> Vec<String>,
    /// Asks for the last number that was written, 0 where there is none, and sees that what is there is what so many writes leave. A move
    /// that was not begun is made up for.
    last: fn(client: &mut Client, who: &str) -> u64,
}

fn number(text: &str) -> u64 {
    if text == "nothing" { 0 } else { text.trim_start_matches('0').parse().unwrap_or(0) }
}

/// Long enough to lie in the value log now and then.
fn padded(number: u64) -> String {
    format!("{number:0width$}", width = 1 + (number % 300) as usize)
}

/// `prefix` with each of `numbers`.
fn named(prefix: &str, numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| format!("{prefix}{number}")).collect()
}

/// Elements that are kept where others are moved away from: more than fit into a packed collection.
const KEPT: u64 = 140;

/// Writes of one life of a collection, in [`life`].
const LIFE: u64 = 200;

/// A collection that grows from packed to large, is then given another name, over the one of the life before, and every second time deleted. The kinds
/// take turns. Each step is a transaction with its own number, which tells afterwards what must be there.
fn life(who: &str, number: u64) -> Vec<String> {
    let (turn, step) = (number / LIFE, number % LIFE);
    let (grown, kept) = (format!("grown:{who}"), format!("kept:{who}"));
    let change = match step {
        180 => format!("RENAME {grown} {kept}"),
        190 if turn % 2 == 1 => format!("DEL {kept} nothing:{who}"),
        181.. => format!("EXISTS {grown} {kept}"),
        _ => match turn % 4 {
            0 => format!("SADD {grown} m{step}"),
            1 => format!("RPUSH {grown} m{step}"),
            2 => format!("HSET {grown} m{step} {}", padded(number)),
            _ => format!("ZADD {grown} {step} m{step}"),
        },
    };
    vec!["MULTI".into(), change, format!("SET step:{who} {number}"), "EXEC".into()]
}

/// The members of what [`life`] has under `key`, whatever its type, in their order where it has one.
fn members(client: &mut Client, key: &str) -> Vec<String> {
    let request = match &client.ask(&format!("TYPE {key}")).unwrap()[..] {
        "none" => return Vec::new(),
        "set" => format!("SMEMBERS {key}"),
        "list" => format!("LRANGE {key} 0 -1"),
        "hash" => format!("HKEYS {key}"),
        _ => format!("ZRANGE {key} 0 -1"),
    };
    let has_order = !matches!(&request[..1], "S" | "H");
    let mut found: Vec<String> = client.ask(&request).unwrap().split(' ').map(str::to_owned).collect();
    if !has_order {
        found.sort_by_key(|member| number(&member[1..]));
    }
    found
}

fn last_of_life(client: &mut Client, who: &str) -> u64 {
    let last = number(&client.ask(&format!("GET step:{who}")).unwrap());
    let (turn, step) = (last / LIFE, last % LIFE);
    let (grown, kept) = (members(client, &format!("grown:{who}")), members(client, &format!("kept:{who}")));
    // The first write of all has the number 1.
    let grown_in = |turn: u64, to: u64| named("m", u64::from(turn == 0)..=to);
    let expected = if last == 0 || step >= 180 { Vec::new() } else { grown_in(turn, step) };
    assert_eq!(grown, expected, "after step {step} of life {turn}");
    let expected = match turn % 2 {
        0 if step >= 180 => grown_in(turn, 179),
        1 if step < 180 => grown_in(turn - 1, 179),
        1 if step < 190 => grown_in(turn, 179),
        _ => Vec::new(),
    };
    assert_eq!(kept, expected, "after step {step} of life {turn}");
    last
}

const FAMILIES: [Family; 10] = [
    Family {
        write: |who, number| vec![format!("SET s:{who} {}", padded(number))],
        last: |client, who| number(&client.ask(&format!("GET s:{who}")).unwrap()),
    },
    Family {
        write: |who, _| vec![format!("INCR i:{who}")],
        last: |client, who| number(&client.ask(&format!("GET i:{who}")).unwrap()),
    },
    // These two become large on the way: one field, one member for each write.
    Family {
        write: |who, number| vec![format!("HSET h:{who} f{number} {}", padded(number))],
        last: |client, who| {
            let fields = number(&client.ask(&format!("HLEN h:{who}")).unwrap());
            if fields > 0 {
                let last = client.ask(&format!("HGET h:{who} f{fields}")).unwrap();
                assert_eq!(number(&last), fields, "every field up to the last");
            }
            fields
        },
    },
    Family {
        write: |who, number| vec![format!("ZADD z:{who} {number} m{number}")],
        last: |client, who| {
            let members = number(&client.ask(&format!("ZCARD z:{who}")).unwrap());
            if members > 0 {
                assert_eq!(client.ask(&format!("ZRANGE z:{who} -1 -1")).unwrap(), format!("m{members}"));
                assert_eq!(client.ask(&format!("ZRANK z:{who} m{members}")).unwrap(), (members - 1).to_string());
            }
            members
        },
    },
    // Keys of several slots and types, changed together.
    Family {
        write: |who, number| {
            vec![
                "MULTI".into(),
                format!("SET a:{who} {}", padded(number)),
                format!("INCR b:{who}"),
                format!("HSET c:{who} field {number}"),
                "EXEC".into(),
            ]
        },
        last: |client, who| {
            let one = number(&client.ask(&format!("GET a:{who}")).unwrap());
            assert_eq!(number(&client.ask(&format!("GET b:{who}")).unwrap()), one, "whole or not at all");
            assert_eq!(number(&client.ask(&format!("HGET c:{who} field")).unwrap()), one, "whole or not at all");
            one
        },
    },
    // A set and a list, which become large as well.
    Family {
        write: |who, number| vec![format!("SADD set:{who} m{number}")],
        last: |client, who| {
            let found = number(&client.ask(&format!("SCARD set:{who}")).unwrap());
            let members = members(client, &format!("set:{who}"));
            assert_eq!(members, named("m", 1..=found), "every member up to the last");
            found
        },
    },
    Family {
        write: |who, number| vec![format!("RPUSH list:{who} e{number}")],
        last: |client, who| {
            let found = number(&client.ask(&format!("LLEN list:{who}")).unwrap());
            let elements = members(client, &format!("list:{who}"));
            assert_eq!(elements, named("e", 1..=found), "every element up to the last");
            found
        },
    },
    // From one to the other, which are in different slots: whatever happens, an element is in exactly one of them.
    Family {
        write: |who, number| {
            let mut requests = vec![format!("SADD from:{who} m{number}")];
            requests.extend(moved(number).map(|moved| format!("SMOVE from:{who} to:{who} m{moved}")));
            requests
        },
        last: |client, who| {
            let (from, to) = (members(client, &format!("from:{who}")), members(client, &format!("to:{who}")));
            let both: BTreeSet<&String> = from.iter().chain(&to).collect();
            assert_eq!(both.len(), from.len() + to.len(), "no member is in both");
            let last = both.len() as u64;
            assert_eq!(both, named("m", 1..=last).iter().collect(), "and none in neither");
            if let Some(moved) = moved(last).filter(|moved| to.len() as u64 != *moved) {
                assert_eq!(to.len() as u64, moved - 1);
                client.ask(&format!("SMOVE from:{who} to:{who} m{moved}")).unwrap();
            }
            last
        },
    },
    Family {
        write: |who, number| {
            let mut requests = vec![format!("RPUSH left:{who} e{number}")];
            requests.extend(moved(number).map(|_| format!("LMOVE left:{who} right:{who} LEFT RIGHT")));
            requests
        },
        last: |client, who| {
            let (left, right) = (members(client, &format!("left:{who}")), members(client, &format!("right:{who}")));
            let last = (left.len() + right.len()) as u64;
            assert_eq!([&right[..], &left[..]].concat(), named("e", 1..=last), "each is in one, in its place");
            if let Some(moved) = moved(last).filter(|moved| right.len() as u64 != *moved) {
                assert_eq!(right.len() as u64, moved - 1);
                client.ask(&format!("LMOVE left:{who} right:{who} LEFT RIGHT")).unwrap();
            }
            last
        },
    },
    Family { write: life, last: last_of_life },
];

/// The element that moves after the `number`th was added: those that were added first do, once there are more than [`KEPT`].
fn moved(number: u64) -> Option<u64> {
    number.checked_sub(KEPT).filter(|moved| *moved > 0)
}

/// What there is by every count of keys.
fn check_counts(client: &mut Client) {
    let mut names = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.ask(&format!("SCAN {cursor} COUNT 100")).unwrap();
        let mut words = reply.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        cursor = words.next().unwrap();
        names.extend(words);
        if cursor == "0" {
            break;
        }
    }
    let count = names.len().to_string();
    assert_eq!(client.ask("DBSIZE").unwrap(), count);
    let all: Vec<String> = names.into_iter().collect();
    assert_eq!(client.ask(&format!("EXISTS {}", all.join(" "))).unwrap(), count);
}

/// Writes from `from` on until the server is gone: the last number that was acknowledged.
fn write(server: &Server, family: &Family, who: &str, from: u64, written: &AtomicU64) -> u64 {
    let mut client = Client::of(server);
    let mut acknowledged = from;
    loop {
        for request in (family.write)(who, acknowledged + 1) {
            if client.ask(&request).is_none() {
                return acknowledged;
            }
        }
        acknowledged += 1;
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last write of each writer of each family.
type Writes = BTreeMap<(usize, u64), u64>;

/// Lets all families write, sends the server a signal after so many writes, and returns what each writer was told when all connections have
/// ended.
fn signal_under_load(server: &Server, signal: &str, from: &Writes, after: u64) -> Writes {
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let written = &written;
        let mut writers = Vec::new();
        for (which, family) in FAMILIES.iter().enumerate() {
            for writer in 0..WRITERS {
                let from = from.get(&(which, writer)).copied().unwrap_or(0);
                let handle = scope.spawn(move || write(server, family, &writer.to_string(), from, written));
                writers.push(((which, writer), handle));
            }
        }
        while written.load(Ordering::Relaxed) < after {
            std::thread::yield_now();
        }
        server.signal(signal);
        writers.into_iter().map(|(of, handle)| (of, handle.join().unwrap())).collect()
    })
}

/// Finds what each writer was told by `client`'s server: what is there.
fn check(client: &mut Client, told: &Writes, when: &str) -> Writes {
    let mut found = Writes::new();
    for ((which, writer), acknowledged) in told {
        let last = (FAMILIES[*which].last)(client, &writer.to_string());
        // The one that was under way when it ended may be there.
        assert!(
            last == *acknowledged || last == acknowledged + 1,
            "{when}, family {which}, writer {writer}: {acknowledged} was acknowledged, {last} is there"
        );
        found.insert((*which, *writer), last);
    }
    check_counts(client);
    found
}

fn is_sound(folder: &Path) {
    let verified = Command::new(env!("CARGO_BIN_EXE_ecotone")).arg("verify").arg(folder.join("data/store")).output();
    let verified = verified.unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[test]
fn nothing_that_was_acknowledged_is_lost_by_a_kill_in_any_durability() {
    for durability in ["none", "everysec", "always"] {
        let folder = tempfile::tempdir().unwrap();
        let more =
            format!("listen = \"127.0.0.1:0\"\n[store]\ndurability = \"{durability}\"\nmemtable_bytes = 1048576\n");
        let file = configuration(folder.path(), &more);
        let mut known = Writes::new();
        for kill in 0..KILLS / 3 {
            let told = signal_under_load(&Server::with(&file), "-KILL", &known, 500 + 700 * kill);
            let server = Server::with(&file);
            known = check(&mut Client::of(&server), &told, &format!("{durability}, kill {kill}"));
            server.terminate();
        }
        assert!(known.values().all(|last| *last > LIFE), "all became large, and had a life and more: {known:?}");
        is_sound(folder.path());
    }
}

#[test]
fn a_server_that_is_told_to_end_while_its_store_holds_writers_up_does_so_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Every few writes there is a flush, and every few of these the writers wait for a compaction.
    let store = "durability = \"always\"\nmemtable_bytes = 65536\nl0_compaction_trigger = 2\nl0_slowdown_trigger = 2\nl0_stop_trigger = 3\n";
    let file = configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\n[store]\n{store}"));
    let mut known = Writes::new();
    for end in 0..4 {
        let server = Server::with(&file);
        let told = signal_under_load(&server, "-TERM", &known, 1000 + 100 * end);
        let began = Instant::now();
        server.ends_well();
        assert!(began.elapsed() < ENDS_WITHIN, "{:?}", began.elapsed());
        let server = Server::with(&file);
        known = check(&mut Client::of(&server), &told, &format!("end {end}"));
        server.terminate();
    }
    is_sound(folder.path());
}
