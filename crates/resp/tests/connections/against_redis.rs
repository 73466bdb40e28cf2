//! Answers that say nothing of keys, compared with those of a real server.

use crate::common;

use std::collections::BTreeSet;

use common::redis::{RealRedis, RedisClient};
use common::{Fixture, TestClient};
use ecotone_resp::command::{Command, table};
use ecotone_resp::service::Limits;

/// Words of a request; `''` is an empty one.
fn words(request: &str) -> Vec<&[u8]> {
    request.split(' ').map(|word| if word == "''" { &b""[..] } else { word.as_bytes() }).collect()
}

/// Sends `request` to both and compares what they reply.
fn compare(own: &mut TestClient<'_>, real: &mut RedisClient, request: &str) {
    let (ours, theirs) = (own.send(&words(request)), real.send(&words(request)));
    assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs), "{request}");
}

fn compare_all(own: &Fixture, real: &RealRedis, requests: &[&str]) {
    for hello in [None, Some("HELLO 3")] {
        let (mut ours, mut theirs) = (own.client(), real.new_client());
        if let Some(hello) = hello {
            ours.ask(hello);
            theirs.send(&words(hello));
        }
        for request in requests {
            compare(&mut ours, &mut theirs, request);
        }
    }
}

#[test]
fn of_connections() {
    let real = RealRedis::start();
    compare_all(
        &Fixture::new(),
        &real,
        &[
            "PING",
            "PING a",
            "PING ''",
            "PING a b",
            "ping",
            "ECHO",
            "ECHO a",
            "ECHO a b",
            "SELECT 0",
            "SELECT x",
            "SELECT -1",
            "SELECT 99",
            "SELECT 99999999999",
            "SELECT 99999999999999999999",
            "SELECT 0.0",
            "SELECT",
            "SELECT 0 0",
            "AUTH",
            "AUTH x",
            "AUTH default x",
            "AUTH other x",
            "AUTH a b c",
            "HELLO x",
            "HELLO 1",
            "HELLO 4",
            "HELLO 2 AUTH",
            "HELLO 3 AUTH default",
            "HELLO 3 AUTH other x",
            "HELLO 3 SETNAME",
            "HELLO 3 other",
            "HELLO 3 setname \u{1}",
            "HELLO 3 AUTH default x SETNAME",
            "HELLO '' AUTH default x",
            "RESET x",
            "nothing",
            "nothing a b",
            "MULTI",
            "PING a b",
            "nothing",
            "EXEC",
            "MULTI",
            "PING",
            "PING a b c",
            "EXEC",
            "MULTI",
            "RESET",
            "EXEC",
            "DISCARD",
            "PING",
        ],
    );
    if real.is_before_7_2() {
        return;
    }
    compare_all(
        &Fixture::new(),
        &real,
        &[
            "COMMAND GETKEYS get",
            "HELLO 2 SETNAME kept AUTH other x",
            "CLIENT GETNAME",
            "HELLO 2 AUTH other x SETNAME \u{1}",
            "HELLO 2 SETNAME too nothing",
            "CLIENT GETNAME",
            "CLIENT NO-TOUCH",
            "CLIENT NO-TOUCH on",
            "CLIENT NO-TOUCH perhaps",
            "CLIENT SETINFO",
            "CLIENT SETINFO other x",
            "CLIENT SETINFO lib-name x",
            "CLIENT SETINFO LIB-VER ''",
            "CLIENT SETINFO lib-ver \u{1}",
            "CLIENT HELP",
            "COMMAND HELP",
            "CLUSTER MYSHARDID",
            "WAITAOF",
            "WAITAOF x 0 0",
            "WAITAOF 2 0 0",
            "WAITAOF -1 0 0",
            "WAITAOF 0 -1 0",
            "WAITAOF 0 x 0",
            "WAITAOF 1 0 x",
            "WAITAOF 0 0 -1",
            "WAITAOF 1 0 0",
            "ZADD z 1 a 2 b",
            "ZRANK z b WITHSCORE",
            "ZREVRANK z b withscore",
            "ZRANK z c WITHSCORE",
            "ZRANK no c WITHSCORE",
            "ZRANK z b WITHSCORES",
            "ZRANK z b WITHSCORE x",
            "RPUSH l a b a",
            "LPOS l a RANK -9223372036854775808",
            "LPOS l a RANK -9223372036854775807",
            "LPOS l a RANK x",
            "FLUSHALL",
        ],
    );
}

#[test]
fn of_clients() {
    let real = RealRedis::start();
    compare_all(
        &Fixture::new(),
        &real,
        &[
            "CLIENT",
            "CLIENT nothing",
            "CLIENT ID x",
            "CLIENT GETNAME",
            "CLIENT SETNAME",
            "CLIENT SETNAME a",
            "CLIENT GETNAME",
            "CLIENT SETNAME a\u{1}",
            "CLIENT GETNAME",
            "CLIENT SETNAME ''",
            "CLIENT GETNAME",
            "CLIENT LIST TYPE other",
            "CLIENT LIST TYPE",
            "CLIENT LIST ID",
            "CLIENT LIST ID x",
            "CLIENT LIST ID 1 x",
            "CLIENT LIST ID 99999",
            "CLIENT LIST TYPE master",
            "CLIENT LIST TYPE pubsub",
            "CLIENT LIST other x",
            "CLIENT LIST TYPE normal x",
            "CLIENT KILL",
            "CLIENT KILL 1.1.1.1:1",
            "CLIENT KILL ID",
            "CLIENT KILL ID x",
            "CLIENT KILL ID 0",
            "CLIENT KILL ID -1",
            "CLIENT KILL ID 99999",
            "CLIENT KILL TYPE other",
            "CLIENT KILL TYPE master",
            "CLIENT KILL TYPE normal ID 99999",
            "CLIENT KILL ADDR 1.1.1.1:1",
            "CLIENT KILL LADDR 1.1.1.1:1",
            "CLIENT KILL USER other",
            "CLIENT KILL USER default ID 99999",
            "CLIENT KILL SKIPME yes ID 99999",
            "CLIENT KILL SKIPME perhaps",
            "CLIENT KILL other x",
            "CLIENT KILL ID 1 ADDR",
            "CLIENT NO-EVICT",
            "CLIENT NO-EVICT on",
            "CLIENT NO-EVICT OFF",
            "CLIENT NO-EVICT perhaps",
        ],
    );
}

#[test]
fn of_arguments_that_are_no_text() {
    let (real, own) = (RealRedis::start(), Fixture::new());
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    ours.ask("SET a 1");
    theirs.send(&words("SET a 1"));
    let long = [0xff; 200];
    for odd in [&b"\xff\xfe\x80"[..], b"x\0y", b"\0", b"x\r\ny\r\n", "\u{e9}".as_bytes(), b"\xc3", &long, b"Upper"] {
        let requests: [&[&[u8]]; 15] = [
            &[odd],
            &[odd, odd, b"x", odd],
            &[b"nothing", odd, odd],
            &[b"CONFIG", odd],
            &[b"SLOWLOG", odd, b"a"],
            &[b"EXPIRE", b"a", b"100", odd],
            &[b"HELLO", b"2", odd],
            &[b"HELLO", odd],
            &[b"CLIENT", b"LIST", b"TYPE", odd],
            &[b"CLIENT", b"KILL", b"TYPE", odd],
            &[b"CLIENT", b"KILL", b"USER", odd],
            &[b"CONFIG", b"SET", odd, b"1"],
            &[b"ACL", b"CAT", odd],
            &[b"COMMAND", b"INFO", odd],
            &[b"INFO", odd],
        ];
        for request in requests {
            let (ours, theirs) = (ours.send(request), theirs.send(request));
            assert!(
                ours == theirs,
                "{:?}: {} instead of {}",
                request.iter().map(|argument| argument.escape_ascii().to_string()).collect::<Vec<_>>(),
                ours.escape_ascii(),
                theirs.escape_ascii()
            );
        }
    }
}

#[test]
fn of_what_a_server_as_it_is_installed_allows() {
    let (real, own) = (RealRedis::start(), Fixture::new());
    own.service.set_limits(Limits::default());
    compare_all(&own, &real, &["DEBUG SLEEP 0", "DEBUG", "DEBUG HELP", "DEBUG nothing"]);
    let long = "k".repeat(70_000);
    let patterns =
        ["KEYS", "SCAN 0 MATCH", "CONFIG GET", "COMMAND LIST FILTERBY PATTERN"].map(|with| format!("{with} {long}"));
    compare_all(&own, &real, &patterns.each_ref().map(String::as_str));
}

#[test]
fn of_the_server() {
    let real = RealRedis::start_with(&["--enable-debug-command", "yes"]);
    let own = Fixture::new();
    own.host.settings.lock().extend([("save".into(), String::new()), ("appendonly".into(), "no".into())]);
    own.host.settings.lock().insert("maxclients".into(), "10000".into());
    compare_all(
        &own,
        &real,
        &[
            "CONFIG",
            "CONFIG nothing",
            "CONFIG HELP",
            "CONFIG HELP x",
            "CONFIG GET",
            "CONFIG GET save",
            "CONFIG GET SAVE",
            "CONFIG GET nothing",
            "CONFIG GET appendonl?",
            "CONFIG SET nothing 1",
            "CONFIG SET save",
            "CONFIG SET maxclients 1 maxclients 2",
            "CONFIG SET maxclients 5 save",
            "CONFIG REWRITE",
            "CONFIG RESETSTAT",
            "CONFIG RESETSTAT x",
            "TIME x",
            "SLOWLOG",
            "SLOWLOG nothing",
            "SLOWLOG HELP",
            "SLOWLOG RESET",
            "SLOWLOG LEN",
            "SLOWLOG GET",
            "SLOWLOG GET 5",
            "SLOWLOG GET -1",
            "SLOWLOG GET -2",
            "SLOWLOG GET x",
            "SLOWLOG GET 1 2",
            "SLOWLOG LEN x",
            "MEMORY",
            "MEMORY nothing",
            "MEMORY USAGE",
            "MEMORY USAGE nokey",
            "MEMORY USAGE nokey SAMPLES",
            "MEMORY USAGE nokey SAMPLES x",
            "MEMORY USAGE nokey SAMPLES -1",
            "MEMORY USAGE nokey SAMPLES 0",
            "MEMORY USAGE nokey other 1",
            "MEMORY PURGE",
            "DEBUG",
            "DEBUG SLEEP",
            "DEBUG SLEEP 0",
            "DEBUG SLEEP x",
            "DEBUG nothing",
            "DEBUG SLEEP 0 0",
            "SAVE x",
            "BGSAVE nothing",
            "BGSAVE SCHEDULE x",
            "LASTSAVE x",
            "SHUTDOWN nothing",
            "SHUTDOWN ABORT",
            "SHUTDOWN SAVE NOSAVE",
            "SHUTDOWN ABORT NOW",
            "SHUTDOWN ABORT SAVE",
            "SHUTDOWN ABORT ABORT",
            "SHUTDOWN FORCE ABORT ABORT",
            "CONFIG SET nothing 1 nothing 2",
            "CONFIG SET Nothing 1 nothing 2",
            "WAIT",
            "WAIT 0 0",
            "WAIT 0 100",
            "WAIT 0 9223372036854775807",
            "WAIT 0 9223372036854775808",
            "WAIT -1 9223372036854775807",
            "WAIT 1 1",
            "WAIT -1 0",
            "WAIT x 0",
            "WAIT 0 x",
            "WAIT 0 -1",
            "ROLE",
            "ROLE x",
            "INFO nothing",
            "INFO cluster",
            "CLUSTER",
            "CLUSTER nothing",
            "CLUSTER INFO",
            "CLUSTER MYID",
            "CLUSTER SLOTS",
            "CLUSTER SHARDS",
            "CLUSTER NODES",
            "CLUSTER KEYSLOT",
            "CLUSTER KEYSLOT a",
            "CLUSTER HELP",
            "CLUSTER MEET 127.0.0.1 7000",
            "CLUSTER ADDSLOTS 1",
            "CLUSTER COUNTKEYSINSLOT 1",
            "CLUSTER REPLICAS x",
            "READONLY",
            "READWRITE",
            "ASKING",
            "READONLY x",
            "ACL",
            "ACL nothing",
            "ACL WHOAMI",
            "ACL USERS",
            "ACL CAT",
            "ACL CAT nothing",
            "ACL CAT a b",
            "INFO keyspace",
            "MULTI",
            "SAVE",
            "EXEC",
            "MULTI",
            "WAIT 1 100",
            "ROLE",
            "EXEC",
        ],
    );
}

#[test]
fn of_the_table() {
    let real = RealRedis::start();
    compare_all(
        &Fixture::new(),
        &real,
        &[
            "COMMAND nothing",
            "COMMAND COUNT x",
            "COMMAND INFO nothing",
            "COMMAND INFO nothing get ''",
            "COMMAND DOCS nothing",
            "COMMAND LIST FILTERBY",
            "COMMAND LIST FILTERBY ACLCAT",
            "COMMAND LIST FILTERBY ACLCAT nothing",
            "COMMAND LIST FILTERBY PATTERN nothing*",
            "COMMAND LIST FILTERBY PATTERN PIN?",
            "COMMAND LIST FILTERBY MODULE any",
            "COMMAND LIST FILTERBY other x",
            "COMMAND LIST other x y",
            "COMMAND LIST x",
            "COMMAND INFO get client|id debug select",
            "COMMAND GETKEYS",
        ],
    );
}

#[test]
fn of_getkeys() {
    let real = RealRedis::start();
    let own = Fixture::new();
    let (mut ours, mut theirs, is_old) = (own.client(), real.new_client(), real.is_before_7_2());
    for asked in [
        "get a",
        "GET a",
        "get a b",
        "set a b",
        "set a",
        "mset a 1 b 2",
        "mset a 1 b",
        "msetnx a 1",
        "mget a b c",
        "del a b c",
        "exists a",
        "rename a b",
        "hset h f v",
        "hmget h a b",
        "zadd z 1 a",
        "zunionstore d 2 a b",
        "zunionstore d 2 a b WEIGHTS 1 2",
        "zunionstore d 3 a b",
        "zunionstore d x a b",
        "zunionstore d 0 a",
        "zunionstore d -1 a",
        "zinter 2 a b",
        "zinterstore d 1 a",
        "zdiff 1 a",
        "sintercard 2 a b",
        "sintercard 0 a b",
        "sunionstore d a b",
        "smove a b m",
        "lmove a b left right",
        "lmpop 2 a b left",
        "zmpop 1 a min",
        "watch a b",
        "expire a 1",
        "type a",
        "bitop and d a b",
        "getset a b",
        "append a b",
        "copy a b",
        "zrangestore d s 0 1",
        "object encoding a",
        "memory usage k",
        "memory usage k samples 5",
        "memory doctor x",
        "memory nothing k",
        "config get save",
        "ping x",
        "nothing x",
        "nothing",
        "client list",
        "exec x",
        "flushall async",
        "scan 0",
    ] {
        // What this server does not have is an unknown command here.
        let name = asked.split(' ').next().unwrap();
        // Redis 7.0 wants one argument more.
        let is_told_alike = asked.contains(' ') || !is_old;
        if is_told_alike && (table::find(name.as_bytes()).is_some() || name == "nothing") {
            compare(&mut ours, &mut theirs, &format!("COMMAND GETKEYS {asked}"));
            compare(&mut ours, &mut theirs, &format!("COMMAND GETKEYSANDFLAGS {asked}"));
        }
    }
}

/// What `INFO stats` says of keys that were asked for.
fn lookups(info: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(info).into_owned();
    text.lines().filter(|line| line.starts_with("keyspace_")).map(str::to_owned).collect()
}

#[test]
fn of_lookups() {
    let real = RealRedis::start();
    let own = Fixture::new();
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    let begin = [
        "FLUSHALL",
        "SET text 1",
        "SADD set a b",
        "SADD other b c",
        "HSET hash field 1",
        "ZADD sorted 1 a",
        "RPUSH list a b",
        "SADD one a",
    ];
    for request in [
        "GET text",
        "GET no",
        "GET list",
        "MGET text no list",
        "EXISTS text no",
        "TOUCH text no",
        "TYPE no",
        "TTL text",
        "STRLEN no",
        "SET text 2",
        "SET text 2 GET",
        "SET no 2 GET",
        "SET list 2 GET",
        "SET text 2 NX",
        "SET no 2 XX",
        "SET no 2 XX GET",
        "SET text 2 NX GET",
        "SET text 2 KEEPTTL",
        "SETNX text 1",
        "SETEX text 10 1",
        "GETSET text 2",
        "GETSET no 2",
        "GETSET list 2",
        "GETDEL text",
        "GETDEL no",
        "GETEX text",
        "GETEX no",
        "GETEX list",
        "GETEX text PERSIST",
        "GETEX text EX 10",
        "GETEX text EXAT 1",
        "GETEX text EX x",
        "MSET text 1 no 2",
        "MSETNX text 1 no 2",
        "APPEND text x",
        "APPEND no x",
        "SETRANGE no 0 x",
        "INCR text",
        "INCRBYFLOAT no 1",
        "DEL text no",
        "UNLINK text no",
        "EXPIRE text 10",
        "EXPIRE no 10",
        "PERSIST text",
        "RENAME text no",
        "RENAMENX text list",
        "RENAME no text",
        "COPY text no",
        "COPY no text",
        "COPY text list",
        "COPY text list REPLACE",
        "COPY no list REPLACE",
        "COPY set no",
        "MEMORY USAGE text",
        "MEMORY USAGE no",
        "RANDOMKEY",
        "KEYS *",
        "DBSIZE",
        "HSET hash field 1",
        "HSETNX hash field 1",
        "HGET hash field",
        "HGET no field",
        "HGET text field",
        "HDEL no field",
        "HINCRBY hash field 1",
        "HRANDFIELD hash 1",
        "HSCAN hash 0",
        "LPUSHX no a",
        "LPOP list",
        "LPOP no",
        "LRANGE list 0 -1",
        "LSET list 0 x",
        "LTRIM list 0 0",
        "LREM list 0 a",
        "LINSERT list BEFORE a b",
        "LMOVE list no LEFT RIGHT",
        "LPOS no a",
        "SADD set a",
        "SREM set a",
        "SMOVE set other a",
        "SMOVE no other a",
        "SMISMEMBER set a b",
        "SPOP set",
        "SPOP no",
        "SPOP set 1",
        "SPOP set 2",
        "SPOP one",
        "SPOP one 1",
        "SPOP no 5",
        "SPOP set 0",
        "SRANDMEMBER set 1",
        "SINTER set no other",
        "SINTER set text other",
        "SINTERCARD 2 no other",
        "SINTERSTORE no set other",
        "SINTERSTORE set no other",
        "SINTERSTORE set set set",
        "SINTERSTORE no set text",
        "SUNIONSTORE no set list other",
        "SUNIONSTORE set no no",
        "SDIFFSTORE set no set",
        "SDIFF set no other",
        "ZADD sorted 1 b",
        "ZINCRBY sorted 1 a",
        "ZREM no a",
        "ZSCORE sorted a",
        "ZPOPMIN sorted",
        "ZRANK no a",
        "ZREMRANGEBYRANK sorted 0 0",
        "ZRANDMEMBER sorted 1",
        "ZCOUNT sorted 0 1",
        "WATCH text no",
        "UNWATCH",
    ] {
        for request in begin.iter().copied().chain(["CONFIG RESETSTAT", request]) {
            ours.ask(request);
            theirs.send(&words(request));
        }
        let (ours, theirs) = (ours.send(&words("INFO stats")), theirs.send(&words("INFO stats")));
        assert_eq!(lookups(&ours), lookups(&theirs), "{request}");
        assert_eq!(lookups(&theirs).len(), 2);
    }
}

/// A reply of RESP2, as far as `COMMAND INFO` uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Parsed {
    Number(i64),
    Text(String),
    Array(Vec<Parsed>),
}

impl Parsed {
    fn of(bytes: &mut &[u8]) -> Self {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let (kind, line) = (bytes[0], std::str::from_utf8(&bytes[1..end]).unwrap().to_owned());
        *bytes = &bytes[end + 2..];
        match kind {
            b':' => Self::Number(line.parse().unwrap()),
            b'*' => Self::Array((0..line.parse::<i64>().unwrap()).map(|_| Self::of(bytes)).collect()),
            b'$' => {
                let (text, rest) = bytes.split_at(line.parse().unwrap());
                *bytes = &rest[2..];
                Self::Text(String::from_utf8(text.to_vec()).unwrap())
            }
            _ => Self::Text(line),
        }
    }

    fn array(&self) -> &[Self] {
        let Self::Array(elements) = self else { panic!("{self:?}") };
        elements
    }

    fn texts(&self) -> BTreeSet<String> {
        let texts = self.array().iter().map(|text| match text {
            Self::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        });
        texts.collect()
    }
}

/// Commands that Redis 7.0 does not have, or describes otherwise than 7.2.
const LATER: [&str; 9] = [
    "client|capa",
    "client|setinfo",
    "client|no-touch",
    "cluster|myshardid",
    "waitaof",
    "zrank",
    "zrevrank",
    "command|getkeys",
    "command|getkeysandflags",
];

/// Commands that no Redis has.
const OWN: &[&str] = &["inspect", "compact", "backup", "federation", "client|level"];

#[test]
fn every_command_is_described_as_redis_does() {
    let real = RealRedis::start();
    let own = Fixture::new();
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    let (mut differences, is_old) = (Vec::new(), real.is_before_7_2());
    for command in table::all_with_subcommands() {
        let Command { name, .. } = command;
        if (is_old && LATER.contains(name)) || OWN.iter().any(|own| name == own || name.split('|').next() == Some(own))
        {
            continue;
        }
        let request = format!("COMMAND INFO {name}");
        let (own_reply, real_reply) = (ours.send(&words(&request)), theirs.send(&words(&request)));
        let (own_reply, real_reply) = (Parsed::of(&mut &own_reply[..]), Parsed::of(&mut &real_reply[..]));
        let (Some(Parsed::Array(own)), Some(Parsed::Array(real))) =
            (own_reply.array().first(), real_reply.array().first())
        else {
            differences.push(format!("{name}: Redis has none"));
            continue;
        };
        // Name, arity, first key, last key, step.
        for field in [0, 1, 3, 4, 5] {
            if own[field] != real[field] {
                differences.push(format!("{name}, field {field}: {:?} and not {:?}", own[field], real[field]));
            }
        }
        // Flags and categories.
        for field in [2, 6] {
            let expected = real[field].texts();
            if own[field].texts() != expected {
                differences.push(format!("{name}: {:?} and not {expected:?}", own[field].texts()));
            }
        }
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}
