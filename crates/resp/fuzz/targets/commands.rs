//! Commands with any arguments, carried out by a live service.

use ecotone_keyspace::{Blocking, WriteGroup};
use ecotone_resp::command::table;

use super::Input;
use super::service::{Live, LiveClient, shown, with_live};

/// Requests of one input.
const MAX_REQUESTS: usize = 48;

/// Arguments of one request besides the command.
const MAX_ARGUMENTS: u8 = 9;

/// Arguments that mean something to some command, more often met than by chance.
const WORDS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"{a}",
    b"",
    b"0",
    b"1",
    b"2",
    b"-1",
    b"3",
    b"-2",
    b"10",
    b"127",
    b"200",
    b"1.5",
    b"-0",
    b"1e300",
    b"inf",
    b"-inf",
    b"nan",
    b"+",
    b"-",
    b"(1",
    b"[a",
    b"(b",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"-9223372036854775807",
    b"99999999999999",
    b"1000",
    b"ex",
    b"px",
    b"exat",
    b"pxat",
    b"nx",
    b"xx",
    b"gt",
    b"lt",
    b"ch",
    b"incr",
    b"get",
    b"keepttl",
    b"persist",
    b"withscores",
    b"withvalues",
    b"limit",
    b"rev",
    b"byscore",
    b"bylex",
    b"count",
    b"match",
    b"type",
    b"*",
    b"a*",
    b"[a-c]",
    b"hash",
    b"zset",
    b"set",
    b"list",
    b"string",
    b"left",
    b"right",
    b"before",
    b"after",
    b"rank",
    b"maxlen",
    b"replace",
    b"weights",
    b"aggregate",
    b"sum",
    b"object",
    b"encoding",
    b"x\r\ny",
    b"\xff\x00",
    b"m1",
    b"m2",
    b"m3",
];

/// Commands that end the process' peace: they sleep, or end connections that are not there.
const LEFT_OUT: &[&str] = &["debug", "shutdown", "save", "bgsave", "backup", "wait"];

/// Commands whose replies are of the moment or drawn at random, or that make what comes after so.
const UNREPEATABLE: &[&str] = &[
    "acl",
    "auth",
    "client",
    "cluster",
    "command",
    "compact",
    "config",
    "expire",
    "expireat",
    "expiretime",
    "getex",
    "hello",
    "hrandfield",
    "info",
    "lastsave",
    "memory",
    "object",
    "pexpire",
    "pexpireat",
    "pexpiretime",
    "psetex",
    "pttl",
    "quit",
    "randomkey",
    "reset",
    "role",
    "setex",
    "slowlog",
    "spop",
    "srandmember",
    "time",
    "ttl",
    "zrandmember",
];

/// The numbers of SETRANGE and its like make values of up to 512 MiB; smaller ones do the same
/// things.
const GROWING: &[&[u8]] = &[b"setrange", b"setbit", b"bitfield"];
const MAX_OFFSET: u64 = 1 << 16;

/// The input is requests, each a command, a count, and so many arguments; and before them, whether
/// the client speaks RESP3.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let is_third = input.byte() % 2 == 1;
    let mut requests = Vec::new();
    while !input.is_empty() && requests.len() < MAX_REQUESTS {
        requests.extend(request(&mut input));
    }
    with_live(|live| {
        let alone = in_groups(live, &requests, is_third, 1);
        let together = in_groups(live, &requests, is_third, usize::MAX);
        if is_repeatable(&requests) {
            for ((alone, together), request) in alone.iter().zip(&together).zip(&requests) {
                let request = shown(&arguments(request));
                assert_eq!(
                    alone.escape_ascii().to_string(),
                    together.escape_ascii().to_string(),
                    "{request}: committed before, and in one group with what came before"
                );
            }
        }
    });
}

fn request(input: &mut Input<'_>) -> Option<Vec<Vec<u8>>> {
    let commands: Vec<&str> = table::all().map(|command| command.name).collect();
    let name = commands[(usize::from(input.byte()) << 8 | usize::from(input.byte())) % commands.len()];
    let mut request = vec![name.as_bytes().to_vec()];
    for _ in 0..input.byte() % (MAX_ARGUMENTS + 1) {
        let argument = match input.byte() {
            // As many as make a collection large.
            255 => {
                request.extend((0..150).map(|number| format!("m{number}").into_bytes()));
                continue;
            }
            length @ 240..255 => input.bytes(usize::from(length - 240) * 7),
            word => WORDS[usize::from(word) % WORDS.len()],
        };
        request.push(argument.to_vec());
    }
    let grows = GROWING.contains(&&request[0][..]) && request.iter().any(|argument| is_far(argument));
    (!grows && !LEFT_OUT.contains(&name)).then_some(request)
}

fn is_far(argument: &[u8]) -> bool {
    std::str::from_utf8(argument).is_ok_and(|text| text.parse::<u64>().is_ok_and(|number| number > MAX_OFFSET))
}

fn arguments(request: &[Vec<u8>]) -> Vec<&[u8]> {
    request.iter().map(Vec::as_slice).collect()
}

/// The replies, with a commit after every `together` requests. The service has no keys before.
fn in_groups(live: &Live, requests: &[Vec<Vec<u8>>], is_third: bool, together: usize) -> Vec<Vec<u8>> {
    live.clear();
    let mut client = live.client();
    let mut group = live.group();
    if is_third {
        client.ask(&mut group, &[b"hello", b"3"]);
    }
    let mut replies = Vec::with_capacity(requests.len());
    for (number, request) in requests.iter().enumerate() {
        let was_empty = group.is_empty();
        let reply = client.ask(&mut group, &arguments(request));
        assert!(
            !(was_empty && reply.starts_with(b"-")) || group.is_empty(),
            "{} has left something: {}",
            shown(&arguments(request)),
            reply.escape_ascii()
        );
        replies.push(reply);
        if (number + 1) % together == 0 {
            group.commit(Blocking::Allowed).expect("a store in memory takes writes");
        }
    }
    replies.extend(all(&mut client, &mut group));
    group.commit(Blocking::Allowed).expect("a store in memory takes writes");
    replies
}

/// What there is in the end, as the client sees it. A transaction that it has not ended is
/// discarded.
fn all(client: &mut LiveClient<'_>, group: &mut WriteGroup) -> Vec<Vec<u8>> {
    client.ask(group, &[b"discard"]);
    let mut replies = vec![client.ask(group, &[b"dbsize"])];
    for key in ["a", "b", "c", "{a}", ""].map(str::as_bytes) {
        for look in ["type", "get", "hgetall", "smembers"] {
            replies.push(client.ask(group, &[look.as_bytes(), key]));
        }
        for look in ["lrange", "zrange"] {
            replies.push(client.ask(group, &[look.as_bytes(), key, b"0", b"-1"]));
        }
    }
    replies
}

fn is_repeatable(requests: &[Vec<Vec<u8>>]) -> bool {
    requests.iter().all(|request| {
        let is_timed = |argument: &Vec<u8>| matches!(&argument[..], b"ex" | b"px" | b"exat" | b"pxat");
        !UNREPEATABLE.iter().any(|name| name.as_bytes() == request[0]) && !request.iter().any(is_timed)
    })
}
