//! The client against servers that keep to nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::command::{BenchOptions, report_table, run_bench};
use crate::driver::Driver;
use crate::workload::{Preload, WorkloadOptions};

/// A server that lets `serve` answer each connection. Where it listens.
fn server(serve: impl Fn(BufReader<TcpStream>, TcpStream) + Send + Sync + 'static) -> ServerOptions {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            std::thread::spawn(move || serve(BufReader::new(stream.try_clone().unwrap()), stream));
        }
    });
    ServerOptions::new(ServerAddress::Tcp(address))
}

/// The next request; none at the end.
fn request(input: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    fn number(input: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    }
    let parts = number(input, '*')?;
    (0..parts)
        .map(|_| {
            let length = number(input, '$')?;
            let mut part = vec![0; length + 2];
            input.read_exact(&mut part).ok()?;
            part.truncate(length);
            Some(part)
        })
        .collect()
}

/// Replies of all lengths are before, behind and across whatever a read brings, and one is longer
/// than many reads.
#[test]
fn replies_are_read_in_their_order_wherever_the_network_cuts_them() {
    let value =
        |number: usize| vec![b'a' + (number % 26) as u8; if number == 700 { 1 << 20 } else { number * 37 % 999 }];
    const REPLIES: usize = 2000;
    let options = server(move |mut input, mut output| {
        let mut replies = Vec::new();
        for number in 0..REPLIES {
            request(&mut input).unwrap();
            replies.extend_from_slice(format!("${}\r\n", value(number).len()).as_bytes());
            replies.extend_from_slice(&value(number));
            replies.extend_from_slice(b"\r\n");
        }
        output.write_all(&replies).unwrap();
    });
    let mut connection = Connection::open(&options.address, None).unwrap();
    for _ in 0..REPLIES {
        connection.queue(&[b"GET", b"key"]);
    }
    connection.send().unwrap();
    for number in 0..REPLIES {
        assert!(connection.receive().unwrap() == Reply::Bulk(Some(value(number))), "reply {number}");
    }
    assert!(!connection.has_reply().unwrap());
    assert!(refusal(connection.receive()).contains("closed the connection"), "and nothing behind them");
}

/// A server that answers PING and then everything with `bytes`, in pieces, and hangs up.
fn answers(bytes: &'static [u8]) -> ServerOptions {
    server(move |mut input, mut output| {
        while let Some(parts) = request(&mut input) {
            if parts[0] == b"PING" {
                output.write_all(b"+PONG\r\n").unwrap();
                continue;
            }
            for byte in bytes {
                if output.write_all(&[*byte]).is_err() {
                    return;
                }
            }
            return;
        }
    })
}

/// A server that keeps what it is given, and tells of itself what `info` says.
fn keeps(info: &'static str) -> ServerOptions {
    let kept = Arc::new(Mutex::new(HashMap::<Vec<u8>, Vec<u8>>::new()));
    server(move |mut input, mut output| {
        let bulk = |value: Option<&[u8]>| match value {
            None => b"$-1\r\n".to_vec(),
            Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
        };
        while let Some(parts) = request(&mut input) {
            let mut kept = kept.lock().unwrap();
            let reply = match (&parts[0][..], &parts[1..]) {
                (b"PING", _) => b"+PONG\r\n".to_vec(),
                (b"INFO", _) => bulk(Some(info.as_bytes())),
                (b"RANDOMKEY", _) => bulk(kept.keys().next().map(|key| &key[..])),
                (b"SET", [key, value]) => {
                    kept.insert(key.clone(), value.clone());
                    b"+OK\r\n".to_vec()
                }
                (b"GET", [key]) => bulk(kept.get(key).map(|value| &value[..])),
                (b"DEL", [key]) => format!(":{}\r\n", u8::from(kept.remove(key).is_some())).into_bytes(),
                (b"MGET", keys) => {
                    let values = keys.iter().map(|key| bulk(kept.get(key).map(|value| &value[..])));
                    [format!("*{}\r\n", keys.len()).into_bytes()].into_iter().chain(values).collect::<Vec<_>>().concat()
                }
                _ => b"-ERR unknown command\r\n".to_vec(),
            };
            output.write_all(&reply).unwrap();
        }
    })
}

fn refusal<T>(result: Result<T>) -> String {
    result.err().expect("it must fail").to_string()
}

#[test]
fn a_server_that_keeps_to_the_protocol_is_a_target() {
    let target = RespTarget::open(&keeps("redis_version:7.0.15\r\n")).unwrap();
    assert!(target.is_empty().unwrap());
    let mut value = vec![9];
    assert!(!target.get(b"key", &mut value).unwrap() && value.is_empty());
    target.put(b"key", b"a\r\nvalue\0").unwrap();
    assert!(target.get(b"key", &mut value).unwrap());
    assert_eq!(value, b"a\r\nvalue\0");
    assert_eq!(target.multi_get(&[b"none", b"key"]).unwrap(), [None, Some(b"a\r\nvalue\0".to_vec())]);
    assert!(!target.is_empty().unwrap());
    target.delete(b"key").unwrap();
    target.delete(b"key").unwrap();
    assert!(target.is_empty().unwrap());
    assert_eq!(target.info().unwrap().kind(), ("redis", "7.0.15"));
    assert!(refusal(target.seek_scan(b"key", 1)).contains("no seek"));
}

/// A server that has sorted sets whose members have one score, and strings.
fn indexes() -> ServerOptions {
    let kept = Arc::new(Mutex::new((BTreeMap::<Vec<u8>, Vec<u8>>::new(), BTreeSet::<Vec<u8>>::new())));
    server(move |mut input, mut output| {
        let array = |values: Vec<Option<Vec<u8>>>| {
            let mut reply = format!("*{}\r\n", values.len()).into_bytes();
            for value in values {
                match value {
                    None => reply.extend(b"$-1\r\n"),
                    Some(value) => reply.extend([format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()),
                }
            }
            reply
        };
        while let Some(parts) = request(&mut input) {
            let mut kept = kept.lock().unwrap();
            let (values, index) = &mut *kept;
            let reply = match (&parts[0][..], &parts[1..]) {
                (b"PING", _) => b"+PONG\r\n".to_vec(),
                (b"INFO", _) => b"$0\r\n\r\n".to_vec(),
                (b"SET", [key, value]) => {
                    values.insert(key.clone(), value.clone());
                    b"+OK\r\n".to_vec()
                }
                (b"GET", [key]) => array(vec![values.get(key).cloned()])[4..].to_vec(),
                (b"ZADD", [_, score, key]) if score == b"0" => {
                    format!(":{}\r\n", u8::from(index.insert(key.clone()))).into_bytes()
                }
                (b"ZRANGEBYLEX", [_, from, to, limit, zero, count])
                    if from[0] == b'[' && (&to[..], &limit[..], &zero[..]) == (b"+", b"LIMIT", b"0") =>
                {
                    let count: usize = std::str::from_utf8(count).unwrap().parse().unwrap();
                    array(index.range(from[1..].to_vec()..).take(count).cloned().map(Some).collect())
                }
                other => panic!("{other:?}"),
            };
            output.write_all(&reply).unwrap();
        }
    })
}

/// As YCSB's own client scans Redis: keys from a sorted set, then their values.
#[test]
fn a_target_with_an_index_scans() {
    let options = indexes();
    let target = RespTarget::open_indexed(&options).unwrap();
    for number in 0..10u8 {
        target.put(&[b'k', number], b"value").unwrap();
    }
    assert_eq!(target.seek_scan(&[b'k', 3], 4).unwrap(), 4);
    assert_eq!(target.seek_scan(&[b'k', 8], 4).unwrap(), 2, "there are no more");
    assert_eq!(target.seek_scan(b"l", 4).unwrap(), 0);
    let mut session = target.session().unwrap().unwrap();
    session.begin(Request::Put { key: b"k\x0a", value: b"value" }, true).unwrap();
    assert!(session.finish().unwrap());
    session.begin(Request::Scan { key: b"k\x09", entries: 5 }, true).unwrap();
    assert!(session.is_answered().unwrap() && session.finish().unwrap());
    session.begin(Request::Scan { key: b"m", entries: 5 }, true).unwrap();
    assert!(!session.finish().unwrap(), "nothing is there");
    // Of several under way replies would come in another order.
    assert!(session.begin(Request::Scan { key: b"k", entries: 5 }, false).is_err());
    assert!(RespTarget::open_indexed(&ServerOptions { pipeline: 2, ..options.clone() }).is_err());
    assert!(RespTarget::open(&options).unwrap().seek_scan(b"k", 1).is_err());

    // The whole workload: filled, and then nothing is missing.
    let target: Arc<dyn Target> = Arc::new(RespTarget::open_indexed(&indexes()).unwrap());
    let workload = WorkloadOptions {
        workload: Workload::YcsbE,
        keys: 200,
        value_bytes: 20,
        threads: 2,
        ops: Some(300),
        ..WorkloadOptions::default()
    };
    let stop = Arc::new(AtomicBool::new(false));
    assert!(Driver::fill(target.clone(), workload.clone(), None, stop).unwrap());
    let existing = WorkloadOptions { preload: Preload::Existing, ..workload };
    let outcome = Driver::start(target, existing, None).unwrap().join().unwrap();
    assert_eq!((outcome.counts.total(), outcome.missed), (300, 0));
}

#[test]
fn operations_under_way_end_in_their_order() {
    let target = RespTarget::open(&keeps("")).unwrap();
    let mut session = target.session().unwrap().unwrap();
    let key = |number: u32| number.to_be_bytes();
    for number in 0..100 {
        session.begin(Request::Put { key: &key(number), value: b"old" }, false).unwrap();
    }
    session.begin(Request::Get { key: &key(100) }, false).unwrap();
    session.begin(Request::ReadModifyWrite { key: &key(100), value: b"new" }, false).unwrap();
    session.begin(Request::ReadModifyWrite { key: &key(7), value: b"new" }, false).unwrap();
    session.begin(Request::Get { key: &key(7) }, false).unwrap();
    let found: Vec<bool> = (0..104).map(|_| session.finish().unwrap()).collect();
    assert_eq!(found, [vec![true; 100], vec![false, false, true, true]].concat());
    assert!(!session.is_answered().unwrap());
    // One at a time the write waits for the read.
    session.begin(Request::ReadModifyWrite { key: &key(200), value: b"new" }, true).unwrap();
    assert!(!session.finish().unwrap());
    session.begin(Request::Get { key: &key(200) }, true).unwrap();
    assert!(session.finish().unwrap());
}

#[test]
fn what_is_no_answer_is_told_with_the_address_and_what_to_do() {
    for (bytes, says) in [
        (&b""[..], "it closed the connection"),
        (b"$5\r\nhel", "it closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the Redis protocol: a reply of an unknown kind: \"H"),
        (b"$99999999999\r\n", "a length that is not between -1 and 67108864"),
        (b":1\r\n", "Integer(1) to GET; is the address right?"),
        (
            b"-NOAUTH Authentication required.\r\n",
            "it refused GET: NOAUTH Authentication required.; give it as resp://:PASSWORD@",
        ),
        (b"-OOM out of space\r\n", "it refused GET: OOM out of space"),
    ] {
        let options = answers(bytes);
        let target = RespTarget::open(&options).unwrap();
        let said = refusal(target.get(b"key", &mut Vec::new()));
        assert!(said.starts_with(&format!("the server at {}: ", options.address)) && said.contains(says), "{said}");
        let mut session = target.session().unwrap().unwrap();
        session.begin(Request::Get { key: b"key" }, false).unwrap();
        let said = refusal(session.finish());
        assert!(said.contains(says), "{said}");
    }
    // An answer of another kind than a write has.
    let target = RespTarget::open(&answers(b"$2\r\nOK\r\n")).unwrap();
    assert!(refusal(target.put(b"key", b"value")).contains("to SET"));
}

/// One byte after the other, each long before the server would be taken to be silent.
#[test]
fn a_reply_that_never_ends_is_given_up() {
    let dribbles = server(|mut input, mut output| {
        while request(&mut input).is_some() && output.write_all(b"$1000000\r\n").is_ok() {
            while output.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let limits = Limits {
        connect_timeout: Duration::from_secs(5),
        silence_timeout: Duration::from_secs(600),
        reply_timeout: Some(Duration::from_millis(100)),
        reply_bounds: Bounds { bytes: 4 << 20, elements: 0 },
    };
    let mut client = Client::open(&dribbles.address, limits).unwrap();
    match client.ask(&[b"INFO"]) {
        Err(Broken::Lost(error)) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let said = refusal(RespTarget::open(&ServerOptions::new(ServerAddress::Tcp(address.clone()))));
    assert!(said.starts_with(&format!("the server at resp://{address}: it cannot be reached: ")), "{said}");
    assert!(said.contains("start it"), "{said}");
    let gone = ServerAddress::Unix("/nonexistent/socket".into());
    assert!(refusal(RespTarget::open(&ServerOptions::new(gone))).contains("unix:///nonexistent/socket"));
    let unknown = ServerOptions { pipeline: 0, ..keeps("") };
    assert!(refusal(RespTarget::open(&unknown)).contains("pipeline is 0; it must be between 1 and 1024"));
}

fn tiny(server: ServerOptions, workload: Workload) -> BenchOptions {
    BenchOptions {
        workload: WorkloadOptions {
            workload,
            keys: 500,
            value_bytes: 100,
            ops: Some(1_000),
            threads: 2,
            ..WorkloadOptions::default()
        },
        target: TargetKind::Resp,
        store: crate::target::TargetSettings::for_target(TargetKind::Resp, crate::target::Profile::Default, None),
        server: Some(server),
        settle_seconds: 10.0,
        ..BenchOptions::default()
    }
}

#[test]
fn every_workload_that_can_be_sent_runs_and_the_others_are_refused_with_the_reason() {
    for workload in Workload::ALL {
        for pipeline in [1, 16] {
            let options = tiny(ServerOptions { pipeline, ..keeps("redis_version:7.0.15\r\n") }, workload);
            if matches!(workload, Workload::MixGraph | Workload::SeekRandom | Workload::YcsbE) {
                let said = refusal(run_bench(&options, |_| {}));
                assert!(said.starts_with(workload.name()) && said.contains("SCAN visits keys in no order"), "{said}");
                assert!(said.contains("run one of: fillrandom, fillseq, "), "{said}");
                continue;
            }
            let report = run_bench(&options, |_| {}).unwrap();
            assert!(report.ops >= 1_000, "{workload}: {}", report.ops);
            assert_eq!(report.ops, report.ops_by_kind.values().sum::<u64>());
            assert_eq!(report.missed, 0, "{workload}");
            for latency in report.latency_us.values() {
                let rising = [0.0, latency.p50, latency.p99, latency.p999, latency.max];
                assert!(rising.is_sorted() && latency.p50 > 0.0, "{workload}: {latency:?}");
            }
        }
    }
}

#[test]
fn a_pause_of_the_server_is_in_the_latency_of_all_that_waited_for_it() {
    const PAUSE: Duration = Duration::from_millis(200);
    let options = server(|mut input, mut output| {
        let mut has_paused = false;
        while let Some(parts) = request(&mut input) {
            if parts[0] == b"GET" && !has_paused {
                std::thread::sleep(PAUSE);
                has_paused = true;
            }
            output.write_all(if parts[0] == b"GET" { b"$1\r\na\r\n" } else { b"+PONG\r\n" }).unwrap();
        }
    });
    let latency = |pipeline| {
        let target: Arc<dyn Target> =
            Arc::new(RespTarget::open(&ServerOptions { pipeline, ..options.clone() }).unwrap());
        let workload = WorkloadOptions {
            workload: Workload::ReadRandom,
            preload: crate::workload::Preload::Existing,
            keys: 16,
            ..WorkloadOptions::default()
        };
        let outcome = crate::driver::Driver::start(target, workload, None).unwrap().join().unwrap();
        assert_eq!((outcome.counts.total(), outcome.missed), (16, 0));
        outcome.latency_us(crate::workload::OperationKind::Get).unwrap()
    };
    let pause_us = PAUSE.as_secs_f64() * 1e6;
    // One at a time one of 16 meets the pause; of 16 under way all do.
    let alone = latency(1);
    assert!(alone.max >= pause_us && alone.p50 < pause_us, "{alone:?}");
    let together = latency(16);
    assert!(together.p50 >= pause_us * 0.9, "{together:?}");
}

#[test]
fn what_a_server_does_not_tell_is_null_and_not_zero() {
    let report = run_bench(&tiny(keeps("redis_version:7.0.15\r\n"), Workload::YcsbF), |_| {}).unwrap();
    let server = report.server.as_ref().unwrap();
    assert_eq!((server.kind.as_str(), server.version.as_str(), server.connections), ("redis", "7.0.15", 2));
    assert_eq!((report.stall_ms, report.war, report.sar, report.cpu_seconds), (None, None, None, None));
    assert_eq!((server.energy_joules, server.epo_uj, server.memory_bytes), (None, None, None));
    for figure in ["stall_ms", "bytes_device", "sar", "cpu_seconds", "server.energy_joules"] {
        assert!(report.unavailable[figure].contains("redis does not tell"), "{figure}: {:?}", report.unavailable);
    }
    assert!(report.bytes_user > 0 && report.options.server.as_ref().unwrap().credentials.is_none());
    let text = report_table(&report);
    assert!(text.contains("redis 7.0.15 at resp://127.0.0.1:") && text.contains("stalled               -"), "{text}");
}

#[test]
fn a_server_with_keys_is_used_only_when_it_is_said_so() {
    let options = tiny(keeps(""), Workload::FillSeq);
    run_bench(&options, |_| {}).unwrap();
    let said = refusal(run_bench(&options, |_| {}));
    assert!(said.contains("it holds keys") && said.contains("--use-existing"), "{said}");
    let mut again = BenchOptions { use_existing: true, ..tiny(options.server.unwrap(), Workload::ReadRandom) };
    assert_eq!(run_bench(&again, |_| {}).unwrap().missed, 0);
    // One key in two is not there: that is reported, not concealed.
    again.workload.keys = 1_000;
    assert!(run_bench(&again, |_| {}).unwrap().missed > 300);
}

#[test]
fn options_that_a_server_has_no_use_for_are_refused() {
    let wrong = |change: fn(&mut BenchOptions)| {
        let mut options = tiny(ServerOptions::new(ServerAddress::Tcp("127.0.0.1:1".into())), Workload::FillRandom);
        change(&mut options);
        refusal(run_bench(&options, |_| {}))
    };
    assert!(wrong(|o| o.dir = Some("/somewhere".into())).starts_with("dir is for stores"));
    assert!(wrong(|o| o.cores = Some(1.0)).starts_with("cores is for stores"));
    assert!(wrong(|o| o.store.memtable_bytes = 1).starts_with("what is set of the store"));
    assert!(wrong(|o| o.server = None).contains("resp://HOST:PORT"));
    assert!(wrong(|o| o.target = TargetKind::Rocksdb).contains("asks no server"));
    let refused = wrong(|o| {
        o.workload.rate_ops_per_s = Some(100.0);
        o.server.as_mut().unwrap().pipeline = 2;
    });
    assert!(refused.contains("leave pipeline at 1"), "{refused}");
    let options = tiny(keeps(""), Workload::FillRandom);
    let said = refusal(options.validate_comparison(&options.of_baseline(TargetKind::Rocksdb), 1));
    assert!(said.contains("run servers one after the other"), "{said}");
}

#[test]
fn a_server_that_goes_away_during_a_run_ends_it() {
    let left = Arc::new(std::sync::atomic::AtomicI64::new(300));
    let options = server(move |mut input, mut output| {
        while let Some(parts) = request(&mut input) {
            if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0 {
                return;
            }
            let reply: &[u8] = match &parts[0][..] {
                b"SET" => b"+OK\r\n",
                b"PING" => b"+PONG\r\n",
                _ => b"$-1\r\n",
            };
            output.write_all(reply).unwrap();
        }
    });
    let options = tiny(options, Workload::FillRandom);
    let target: Arc<dyn Target> = Arc::new(RespTarget::open(options.server.as_ref().unwrap()).unwrap());
    let workload = WorkloadOptions { preload: crate::workload::Preload::Existing, ..options.workload };
    let said = refusal(crate::driver::Driver::start(target, workload, None).unwrap().join());
    assert!(said.contains("it closed the connection") || said.contains("the connection broke"), "{said}");
}
