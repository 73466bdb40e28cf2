//! SIGKILL under load: whatever a client was told is there when the server comes up again, and a transaction is there whole or not at all.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Server, configuration};

/// Kills of a server.
const KILLS: u64 = 12;

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
    /// Asks for the last number that was written; 0 where there is none.
    last: fn(client: &mut Client, who: &str) -> u64,
}

fn number(text: &str) -> u64 {
    if text == "nothing" { 0 } else { text.trim_start_matches('0').parse().unwrap_or(0) }
}

/// Long enough to lie in the value log now and then.
fn padded(number: u64) -> String {
    format!("{number:0width$}", width = 1 + (number % 300) as usize)
}

const FAMILIES: [Family; 5] = [
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
];

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

/// Lets all families write, kills the server after so many writes, and returns what each writer was told.
fn kill_under_load(file: &Path, from: &BTreeMap<(usize, u64), u64>, after: u64) -> BTreeMap<(usize, u64), u64> {
    let server = Server::with(file);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (server, written) = (&server, &written);
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
        server.signal("-KILL");
        writers.into_iter().map(|(of, handle)| (of, handle.join().unwrap())).collect()
    })
}

#[test]
fn nothing_that_was_acknowledged_is_lost_by_a_kill_in_any_durability() {
    for durability in ["none", "everysec", "always"] {
        let folder = tempfile::tempdir().unwrap();
        let more =
            format!("listen = \"127.0.0.1:0\"\n[store]\ndurability = \"{durability}\"\nmemtable_bytes = 1048576\n");
        let file = configuration(folder.path(), &more);
        let mut known = BTreeMap::new();
        for kill in 0..KILLS / 3 {
            let told = kill_under_load(&file, &known, 200 + 700 * kill);
            let server = Server::with(&file);
            let mut client = Client::of(&server);
            for ((which, writer), acknowledged) in told {
                let found = (FAMILIES[which].last)(&mut client, &writer.to_string());
                // The one that was under way when it was killed may be there.
                assert!(
                    found == acknowledged || found == acknowledged + 1,
                    "{durability}, kill {kill}, family {which}, writer {writer}: {acknowledged} was acknowledged, {found} is there"
                );
                known.insert((which, writer), found);
            }
            server.terminate();
        }
    }
}
