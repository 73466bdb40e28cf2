//! Pipelines over sockets: what clients see of the server as it is served, with event loops,
//! look-ahead, latches and the commits of groups.
//!
//! A pipeline is sent in one piece, and all its replies are awaited before the other client goes
//! on, so both servers carry out the same commands in the same order. Meanwhile others take the
//! latches of the same slots, have groups committed and read the same keys, and leave nothing
//! behind.

use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_engine::{Durability, StoreSettings};
use ecotone_resp::service::Limits;

use crate::common::redis::RealRedis;
use crate::common::served::Served;
use crate::common::wire::{Wire, request};
use crate::common::words;
use crate::generate::{Compare, Family, Random, Request, shown};
use crate::sides::{CLIENTS, Queued};
use crate::{Transactions, requests};

/// Requests of one pipeline.
const LENGTHS: [usize; 5] = [1, 2, 5, 20, 80];

/// What the others send, again and again. Each key is in the slot of one that is compared, and of
/// none of them there is anything to see.
const OTHERS: &[&str] = &[
    "MULTI",
    "SET {a}other 1",
    "RPUSH {t}other 1 2 3",
    "DEL {a}other {t}other",
    "EXEC",
    "DEL {a}other {b}other {c}other {t}other",
    "EXISTS a b c {t}d {t}e",
    "GET a",
    "TYPE {t}d",
];

/// Tells the others to stop, also where the test fails.
struct StopsOthers<'a>(&'a AtomicBool);

impl Drop for StopsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The commands of `requests`, one by one: of a scan one step, whose cursor is each server's own.
fn commands(requests: Vec<Request>) -> Vec<Request> {
    let mut commands = Vec::with_capacity(requests.len());
    for mut request in requests {
        match request.compare {
            Compare::Plant => continue,
            Compare::PopOne => {
                let key = request.arguments[1].clone();
                for words in [&[&b"DEL"[..], &key][..], &[b"SADD", &key, b"member"]] {
                    commands.push(Request { client: request.client, ..Request::new(words, Compare::Exact) });
                }
            }
            Compare::WholeScan { .. } | Compare::WholeScanOfPairs { .. } => request.compare = Compare::Kind,
            _ => {}
        }
        commands.push(request);
    }
    commands
}

/// Sends random commands of `families` to both.
pub fn compare(redis: &RealRedis, families: &[Family], transactions: Transactions, version: u8, seed: u64) {
    let mut random = Random::new(seed);
    let options = StoreSettings {
        memtable_bytes: (64 << 10) << random.below(3),
        durability: if seed.is_multiple_of(2) { Durability::None } else { Durability::Always },
        ..StoreSettings::default()
    };
    let limits = Limits { pipeline_requests: 1 + random.below(50) as usize, ..Limits::default() };
    let served = Served::with(limits, options.with_separation(1 << random.below(10)), 2);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = StopsOthers(&is_over);
        for _ in 0..2 {
            scope.spawn(|| disturb(&served, &is_over));
        }
        let mut theirs: [_; CLIENTS] = std::array::from_fn(|_| redis.client(version));
        let mut ours: [_; CLIENTS] = std::array::from_fn(|_| {
            let mut wire = Wire::to(served.address());
            wire.ask(&format!("HELLO {version}"));
            wire
        });
        theirs[0].send(&[b"FLUSHALL"]);
        let commands = commands(requests(families, transactions, seed));
        let (mut rest, mut queued) = (&commands[..], Queued::default());
        while let [first, ..] = rest {
            let most = LENGTHS[random.below(LENGTHS.len() as u64) as usize];
            let length = rest.iter().take(most).take_while(|command| command.client == first.client).count();
            let (pipeline, behind) = rest.split_at(length);
            rest = behind;
            // Who sends what matters to transactions only.
            let client = match transactions {
                Transactions::Never => random.below(CLIENTS as u64) as usize,
                Transactions::Often => first.client,
            };
            let bytes: Vec<u8> = pipeline.iter().flat_map(bytes_of).collect();
            ours[client].send(&bytes);
            let others = theirs[client].send_bytes(&bytes, length);
            for (at, (command, others)) in pipeline.iter().zip(&others).enumerate() {
                let own = ours[client].reply();
                if !queued.is_same(command, &own, others) {
                    let list: Vec<String> = pipeline[..=at].iter().map(|command| format!("  {command}\n")).collect();
                    let (own, others) = (shown(&own), shown(others));
                    panic!("seed {seed}, the last command of\n{}here:  {own}\nthere: {others}", list.concat());
                }
            }
        }
    });
    served.server.stop();
}

fn bytes_of(command: &Request) -> Vec<u8> {
    request(&command.arguments.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn disturb(served: &Served, is_over: &AtomicBool) {
    let mut wire = Wire::to(served.address());
    let pipeline: Vec<u8> = OTHERS.iter().flat_map(|command| request(&words(command))).collect();
    while !is_over.load(Ordering::Relaxed) {
        wire.send(&pipeline);
        OTHERS.iter().for_each(|_| _ = wire.reply());
    }
}
