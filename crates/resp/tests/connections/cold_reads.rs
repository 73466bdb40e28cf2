//! What is not in memory: clients that ask for it get it in their order, whoever waits for the
//! device.

use crate::common;

use std::fs::File;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use common::{Fixture, noise, words};
use ecotone_engine::{AwaitedReads, Durability, StoreSettings};
use ecotone_keyspace::{Blocking, Slot, WriteGroup};
use ecotone_resp::serve::Listen;
use ecotone_resp::service::Limits;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const KEYS: usize = 600;
/// Has no divisor in common with [`KEYS`].
const STRIDE: usize = 211;
const FILLER: usize = 1900;
const SETS: usize = 40;

fn options() -> StoreSettings {
    StoreSettings { durability: Durability::None, mapped_read_bytes: 0, ..StoreSettings::default() }
        .with_separation(1000)
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
    // Large, so that each is held still to be read.
    let members: Vec<_> = (0..300).map(|number| format!("{number} m{number}")).collect();
    (0..SETS).for_each(|set| _ = client.ask(&format!("ZADD set:{set} {}", members.join(" "))));
    fixture.service.keyspace.only_store().unwrap().flush(true).unwrap();
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

/// A server over all of it, of which nothing is in memory.
fn cold(uses_io_uring: bool) -> Served {
    cold_with(uses_io_uring, options())
}

fn cold_with(uses_io_uring: bool, options: StoreSettings) -> Served {
    let listen = Listen { addresses: any_port(), uses_io_uring, ..Listen::default() };
    let served = Served::at_listening(filled(), Limits::default(), options, &listen);
    forget(served.directory.path());
    served
}

/// Whether the kernel reads without a thread that waits, and forgets the files in `directory` when
/// it is told to: said aloud where not.
fn kernel_reads(directory: &Path) -> bool {
    let file = File::open(directory.join("STORE")).unwrap();
    let told = preadv2(&file, &mut [IoSliceMut::new(&mut [0; 8])], 0, ReadWriteFlags::NOWAIT);
    let ring = AwaitedReads::<Rc<()>>::new().map(drop);
    let reads = ring.is_ok() && told == Err(Errno::AGAIN);
    if !reads {
        eprintln!("threads wait here: {ring:?}, {told:?}");
    }
    reads
}

/// How many requests waited for the kernel, and for a thread.
fn waited(served: &Served) -> (u64, u64) {
    let statistics = &served.service.statistics;
    (statistics.reads_awaited.load(Ordering::Relaxed), statistics.blocking_requests.load(Ordering::Relaxed))
}

fn pipeline(requests: &[String]) -> Vec<u8> {
    requests.iter().flat_map(|one| request(&words(one))).collect()
}

fn ask_in_pipelines(served: &Served) {
    const CLIENTS: usize = 4;
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
    assert_eq!(served.service.statistics.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn pipelines_over_what_is_cold_are_answered_in_order_while_the_kernel_reads() {
    let served = cold(true);
    let kernel_reads = kernel_reads(served.directory.path());
    ask_in_pipelines(&served);
    let (awaited, blocking_requests) = waited(&served);
    assert!(awaited > 20 || !kernel_reads, "{awaited} waited for the kernel, {blocking_requests} for a thread");
    served.server.stop();
}

/// Of which the kernel keeps nothing, as far as it is known.
fn past_the_cache() -> StoreSettings {
    StoreSettings { page_cache_bytes: Some(0), ..options() }
}

#[test]
fn what_is_read_past_the_kernels_cache_is_answered_in_order_too() {
    let served = cold_with(true, past_the_cache());
    let kernel_reads = kernel_reads(served.directory.path());
    ask_in_pipelines(&served);
    let (awaited, blocking_requests) = waited(&served);
    assert!(awaited > 20 || !kernel_reads, "{awaited} waited for the kernel, {blocking_requests} for a thread");
    served.server.stop();
}

#[test]
fn what_is_read_past_the_kernels_cache_is_read_each_time_and_stays_out_of_it() {
    let listen = Listen { addresses: any_port(), ..Listen::default() };
    let served = Served::at_listening(filled(), Limits::default(), past_the_cache(), &listen);
    let mut wire = Wire::to(served.address());
    let mut ask_all = || {
        let before = waited(&served).0;
        for number in 0..KEYS {
            assert!(wire.ask(&format!("GET text:{number}")).len() > FILLER);
        }
        waited(&served).0 - before
    };
    // Where the keys lie is in memory then.
    ask_all();
    forget(served.directory.path());
    if !kernel_reads(served.directory.path()) || is_of_memory(served.directory.path()) {
        return;
    }
    ask_all();
    assert!(ask_all() >= KEYS as u64, "something keeps values in memory");
    served.server.stop();
}

/// Whether the file system reads nothing past the kernel's cache: said aloud.
fn is_of_memory(directory: &Path) -> bool {
    let (flags, mask) = (rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::DIOALIGN);
    let told = rustix::fs::statx(File::open(directory.join("STORE")).unwrap(), "", flags, mask);
    let is_told = told.is_ok_and(|told| told.stx_mask & mask.bits() != 0 && told.stx_dio_offset_align > 0);
    if !is_told {
        eprintln!("not tested: the file system reads nothing past the kernel's cache");
    }
    !is_told
}

#[test]
fn a_value_that_is_damaged_is_no_answer_past_the_kernels_cache_either() {
    let served = cold_with(true, past_the_cache());
    let segments = std::fs::read_dir(served.directory.path().join("values")).unwrap();
    for segment in
        segments.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|it| it == "segment"))
    {
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes.iter_mut().skip(1000).step_by(1000).for_each(|byte| *byte ^= 1);
        std::fs::write(&segment, &bytes).unwrap();
    }
    let reads_past_it = kernel_reads(served.directory.path()) && !is_of_memory(served.directory.path());
    let mut wire = Wire::to(served.address());
    let before = waited(&served).0;
    for number in 0..20 {
        let reply = wire.ask(&format!("GET text:{number}"));
        assert!(reply.starts_with("-IOERR") || reply.starts_with("-ERR"), "{}", &reply[..reply.len().min(100)]);
    }
    let read = waited(&served).0 - before;
    assert!(read >= 20 || !reads_past_it, "{read} were read past the cache");
    // Nor need who asks for its length alone, or wants it no more.
    assert_eq!(wire.ask("STRLEN text:4"), format!(":{FILLER}\r\n"));
    assert_eq!(wire.ask("SET text:0 new XX KEEPTTL"), "+OK\r\n");
    assert_eq!(wire.ask("GET text:0"), "$3\r\nnew\r\n");
    assert_eq!(wire.ask("DEL text:1 text:2"), ":2\r\n");
    assert_eq!(wire.ask("EXISTS text:0 text:1 text:2 text:3"), ":2\r\n");
    assert_eq!(wire.ask("RENAME text:0 text:3"), "+OK\r\n");
    assert_eq!(wire.ask("GET text:3"), "$3\r\nnew\r\n");
    served.server.stop();
}

#[test]
fn without_the_kernels_help_threads_wait() {
    let served = cold(false);
    let kernel_forgets = kernel_reads(served.directory.path());
    ask_in_pipelines(&served);
    let (awaited, blocking_requests) = waited(&served);
    assert_eq!(awaited, 0);
    assert!(blocking_requests > 20 || !kernel_forgets, "{blocking_requests} waited for a thread");
    served.server.stop();
}

#[test]
fn who_reads_takes_a_latch_that_is_free_whoever_waits_for_others() {
    let listen = Listen { addresses: any_port(), uses_io_uring: false, blocking_threads: 4, ..Listen::default() };
    let served = Served::at_listening(filled(), Limits::default(), options(), &listen);
    let mut holder = WriteGroup::new(served.service.keyspace.clone());
    assert!(holder.hold(&[Slot::of(b"latched")], Blocking::Never));
    let mut writers: Vec<_> = (0..8).map(|_| Wire::to(served.address())).collect();
    writers.iter_mut().for_each(|writer| writer.send(&request(&[b"INCR", b"latched"])));
    until("all of them wait", || served.service.statistics.waiting.load(Ordering::Relaxed) == 8);
    forget(served.directory.path());
    let kernel_forgets = kernel_reads(served.directory.path());
    let before = waited(&served).1;
    let mut wire = Wire::to(served.address());
    for set in 0..SETS {
        if set % 2 == 0 {
            // Where the key is in memory, the event loop has its latch when it meets what is not.
            assert_eq!(wire.ask(&format!("TYPE set:{set}")), "+zset\r\n");
        }
        forget(served.directory.path());
        assert_eq!(wire.ask(&format!("ZRANGE set:{set} 1 2")), "*2\r\n$2\r\nm1\r\n$2\r\nm2\r\n");
    }
    assert!(
        waited(&served).1 >= before + SETS as u64 / 2 || !kernel_forgets,
        "{} needed a thread",
        waited(&served).1 - before
    );
    drop(holder);
    writers.iter_mut().for_each(|writer| assert!(writer.reply().starts_with(b":")));
    until("nobody waits", || served.service.statistics.waiting.load(Ordering::Relaxed) == 0);
    served.server.stop();
}

#[test]
fn what_one_command_misses_is_read_together() {
    one_command_reads_together(options());
    one_command_reads_together(past_the_cache());
}

fn one_command_reads_together(options: StoreSettings) {
    let listen = Listen { addresses: any_port(), ..Listen::default() };
    let served = Served::at_listening(filled(), Limits::default(), options, &listen);
    let mut wire = Wire::to(served.address());
    // Where the keys lie is in memory then.
    for number in 0..KEYS {
        wire.ask(&format!("TYPE text:{number}"));
    }
    forget(served.directory.path());
    let kernel_reads = kernel_reads(served.directory.path());
    for first in (0..KEYS).step_by(40) {
        // Not in the order that they were written in: the kernel would read ahead, and may be done
        // before it is asked again.
        let numbers = (first..first + 40).map(|step| step * STRIDE % KEYS);
        let keys: Vec<_> = numbers.map(|number| format!("text:{number}")).collect();
        let before = waited(&served);
        let reply = wire.ask(&format!("MGET {}", keys.join(" ")));
        assert!(reply.len() > 40 * FILLER && !reply.contains("$-1"));
        let after = waited(&served);
        assert!(after.0 - before.0 + after.1 - before.1 <= 3, "{before:?} {after:?}");
    }
    let (awaited, blocking_requests) = waited(&served);
    assert!(awaited > 0 || !kernel_reads, "{awaited} waited for the kernel, {blocking_requests} for a thread");
    let before = waited(&served);
    forget(served.directory.path());
    assert_eq!(wire.ask("MGET text:1 text:2 text:3").matches(&format!("${FILLER}")).count(), 3);
    assert!(waited(&served).1 == before.1 || !kernel_reads, "a thread had to wait");
    served.server.stop();
}

#[test]
fn what_is_long_is_left_to_a_thread() {
    const LONG: usize = 100_000;
    let fixture = Fixture::with(options());
    fixture.client().ask(&format!("SET long {}", "l".repeat(LONG)));
    fixture.service.keyspace.only_store().unwrap().flush(true).unwrap();
    let Fixture { service, directory, .. } = fixture;
    drop(service);
    let served = Served::at(directory, Limits::default(), options(), 1);
    forget(served.directory.path());
    let kernel_forgets = kernel_reads(served.directory.path());
    let mut wire = Wire::to(served.address());
    assert_eq!(wire.ask("GETRANGE long 0 1"), "$2\r\nll\r\n");
    assert!(waited(&served).1 > 0 || !kernel_forgets);
    served.server.stop();
}

#[test]
fn a_server_stops_while_the_kernel_reads() {
    for _ in 0..5 {
        let served = cold(true);
        let mut wires: Vec<_> = (0..8).map(|_| Wire::to(served.address())).collect();
        for (client, wire) in wires.iter_mut().enumerate() {
            let requests: Vec<_> =
                (0..20).map(|step| format!("GET text:{}", (client + step * STRIDE) % KEYS)).collect();
            wire.send(&pipeline(&requests));
        }
        served.server.stop();
        for mut wire in wires {
            // What it replied it has replied whole; then the connection ends.
            while let reply = wire.reply()
                && !reply.is_empty()
            {
                assert!(reply.len() > FILLER, "{reply:?}");
            }
        }
    }
}
