//! What is not in memory: clients that ask for it get it in their order, and nobody else waits for the device with them.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::fs::File;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use common::served::Served;
use common::wire::{Wire, request};
use common::{Fixture, noise, words};
use ecotone_engine::{AwaitedReads, Durability, StoreOptions};
use ecotone_resp::service::Limits;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const KEYS: usize = 600;
/// Has no divisor in common with [`KEYS`].
const STRIDE: usize = 211;
const FILLER: usize = 3000;

fn options() -> StoreOptions {
    StoreOptions { durability: Durability::None, mapped_read_bytes: 0, ..StoreOptions::default() }.with_separation(1000)
}

/// All of a store, given back, with values beside and apart from their keys.
fn filled() -> tempfile::TempDir {
    let fixture = Fixture::with(options());
    let mut client = fixture.client();
    let noise: String = noise(FILLER).into_iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    for number in 0..KEYS {
        client.ask(&format!("SET counter:{number} {number}"));
        client.ask(&format!("HSET hash:{number} n {number} filler {noise}"));
        client.ask(&format!("SET text:{number} {noise}"));
    }
    fixture.service.keyspace.store().flush(true).unwrap();
    let Fixture { service, directory, .. } = fixture;
    drop(service);
    directory
}

/// Makes the kernel forget what it can of the files of `directory`.
fn forget(directory: &Path) {
    let folders = [directory.join("values"), directory.to_path_buf()];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    for path in files {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Whether the kernel reads without a thread that waits, and can tell what it has of the files in `directory`: said aloud where not.
fn kernel_reads(directory: &Path) -> bool {
    let file = File::open(directory.join("STORE")).unwrap();
    let told = preadv2(&file, &mut [IoSliceMut::new(&mut [0; 8])], 0, ReadWriteFlags::NOWAIT);
    let ring = AwaitedReads::<Rc<()>>::new().map(drop);
    let reads = ring.is_ok() && told != Err(Errno::OPNOTSUPP);
    if !reads {
        eprintln!("threads wait here: {ring:?}, {told:?}");
    }
    reads
}

fn pipeline(requests: &[String]) -> Vec<u8> {
    requests.iter().flat_map(|one| request(&words(one))).collect()
}

#[test]
fn pipelines_over_what_is_cold_are_answered_in_order_while_the_kernel_reads() {
    const CLIENTS: usize = 4;
    let served = Served::at(filled(), Limits::default(), options(), 1);
    forget(served.directory.path());
    let address = served.address();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut wire = Wire::to(address);
                for step in (client..KEYS).step_by(CLIENTS) {
                    // Not in the order that they were written in: the kernel would read ahead.
                    let number = step * STRIDE % KEYS;
                    wire.send(&pipeline(&[
                        format!("GET counter:{number}"),
                        format!("APPEND text:{number} {number:04}"),
                        format!("HINCRBY hash:{number} n 1"),
                        format!("STRLEN text:{number}"),
                        format!("HMGET hash:{number} n none"),
                        "MULTI".into(),
                        format!("INCR counter:{number}"),
                        format!("GETRANGE text:{number} -4 -1"),
                        "EXEC".into(),
                    ]));
                    let (after, long) = (number + 1, FILLER + 4);
                    let (digits, digits_after) = (number.to_string().len(), after.to_string().len());
                    let expected = format!(
                        "${digits}\r\n{number}\r\n:{long}\r\n:{after}\r\n:{long}\r\n*2\r\n${digits_after}\r\n{after}\r\n$-1\r\n\
                         +OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:{after}\r\n$4\r\n{number:04}\r\n"
                    );
                    let replies: Vec<u8> = (0..9).flat_map(|_| wire.reply()).collect();
                    assert_eq!(String::from_utf8_lossy(&replies), expected);
                }
            });
        }
    });
    let awaited = served.service.statistics.reads_awaited.load(Ordering::Relaxed);
    let handed_on = served.service.statistics.handed_on.load(Ordering::Relaxed);
    let is_offered = kernel_reads(served.directory.path());
    let (most, fewest) = if is_offered { (awaited, handed_on) } else { (handed_on, awaited) };
    assert!(most > 20 && fewest < most / 2, "{awaited} waited for the kernel, {handed_on} for a thread");
    assert_eq!(served.service.statistics.waiting.load(Ordering::Relaxed), 0);
    served.server.stop();
}

#[test]
fn what_one_command_misses_is_read_together() {
    let served = Served::at(filled(), Limits::default(), options(), 1);
    if !kernel_reads(served.directory.path()) {
        return;
    }
    let mut wire = Wire::to(served.address());
    // Where the keys lie is in memory then.
    for number in 0..KEYS {
        wire.ask(&format!("TYPE text:{number}"));
    }
    forget(served.directory.path());
    let (awaited, handed_on) = (&served.service.statistics.reads_awaited, &served.service.statistics.handed_on);
    for first in (0..KEYS).step_by(40) {
        let keys: Vec<_> = (first..first + 40).map(|number| format!("text:{number}")).collect();
        let before = (awaited.load(Ordering::Relaxed), handed_on.load(Ordering::Relaxed));
        let reply = wire.ask(&format!("MGET {}", keys.join(" ")));
        assert!(reply.len() > 40 * FILLER && !reply.contains("$-1"));
        let after = (awaited.load(Ordering::Relaxed), handed_on.load(Ordering::Relaxed));
        assert!(after.0 - before.0 + after.1 - before.1 <= 3, "{before:?} {after:?}");
    }
    assert!(awaited.load(Ordering::Relaxed) > 0);
    served.server.stop();
}
