//! Reads as RocksDB makes them, and as it does not, against a server that counts the bytes it
//! sends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ecotone_types::ServerId;
use proptest::prelude::*;

use super::*;
use crate::connections::Timeouts;
use crate::exports::Token;
use crate::file_client::Peer;
use crate::security::Security;

const CHUNK_BYTES: usize = 4096;

/// Sends one file's bytes until its client is gone, and gives how often each was sent.
fn serve(mut stream: TcpStream, file: &[u8]) -> Vec<u32> {
    let mut sent = vec![0; file.len()];
    let mut hello = [0; 40];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(&[0]).unwrap();
    loop {
        let mut name_length = [0];
        if stream.read_exact(&mut name_length).is_err() {
            return sent;
        }
        let mut rest = vec![0; usize::from(name_length[0]) + 12];
        stream.read_exact(&mut rest).unwrap();
        let numbers = &rest[usize::from(name_length[0])..];
        let offset = u64::from_le_bytes(numbers[..8].try_into().unwrap()) as usize;
        let length = u32::from_le_bytes(numbers[8..].try_into().unwrap()) as usize;
        let end = (offset + length).min(file.len());
        sent[offset..end].iter_mut().for_each(|count| *count += 1);
        let head = [&[0][..], &((end - offset) as u32).to_le_bytes()].concat();
        if stream.write_all(&head).and_then(|()| stream.write_all(&file[offset..end])).is_err() {
            return sent;
        }
    }
}

fn connect(address: &str) -> Arc<FileClient> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let timeouts =
        Timeouts { connect: Duration::from_secs(1), read: Duration::from_secs(3), silence: Duration::from_secs(3) };
    let server = ServerId::new("owner").unwrap();
    let peer = Peer { name: "owner".into(), address, server: &server };
    let token = Token::new().unwrap();
    let through = (runtime.handle(), &*Security::plain_text());
    FileClient::connect(through, peer, token, &timeouts, Arc::default(), Arc::default()).unwrap()
}

/// Does `reads` with the remote file of `bytes` bytes, and gives how often each byte crossed the
/// network.
fn read(bytes: usize, reads: impl FnOnce(&dyn RangedRead, &[u8])) -> Vec<u32> {
    let file: Vec<u8> = (0..bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(listener.accept().unwrap().0, &file));
        let client = connect(&address);
        let inputs = [InputFile { name: "000001.sst".into(), bytes: bytes as u64, content_hash: Vec::new() }];
        let files = OwnerFiles::new("/owner".into(), &inputs, client, CHUNK_BYTES);
        let remote = files.open(Path::new("/owner/000001.sst")).unwrap().unwrap();
        reads(&*remote, &file);
        drop((remote, files));
        served.join().unwrap()
    })
}

fn check(remote: &dyn RangedRead, file: &[u8], offset: usize, length: usize) {
    let mut buffer = vec![0xEE; length];
    let read = remote.read_at(offset as u64, &mut buffer).unwrap();
    let end = (offset + length).min(file.len());
    assert_eq!(&buffer[..read], &file[offset.min(end)..end], "{length} bytes at {offset}");
}

#[test]
fn a_table_read_as_a_compaction_does_crosses_the_network_once() {
    let bytes = 300_000;
    let sent = read(bytes, |remote, file| {
        // Footer first, then what lies before it, then the blocks in order, each with its
        // neighbour's border.
        check(remote, file, bytes - 53, 53);
        check(remote, file, bytes - 9_000, 8_000);
        check(remote, file, bytes - 600, 500);
        let mut place = 0;
        for block in 0.. {
            let length = 3_000 + (block * 37) % 2_000;
            if place + length > bytes - 9_000 {
                break;
            }
            let border = place.saturating_sub(200);
            check(remote, file, border, place + length - border);
            place += length;
        }
        check(remote, file, place, bytes - 9_000 - place);
    });
    let twice = sent.iter().filter(|count| **count != 1).count();
    assert_eq!(twice, 0, "bytes that crossed the network not exactly once");
}

#[test]
fn a_file_read_whole_from_its_beginning_crosses_the_network_once() {
    let sent = read(100_000, |remote, file| {
        for place in (0..file.len()).step_by(10_000) {
            check(remote, file, place, 10_000);
        }
        check(remote, file, file.len(), 10);
    });
    assert!(sent.iter().all(|count| *count == 1));
}

#[test]
fn only_the_jobs_files_are_there() {
    read(10, |_, _| ());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(listener.accept().unwrap().0, &[]));
        let client = connect(&address);
        let inputs = [InputFile { name: "000001.sst".into(), bytes: 0, content_hash: Vec::new() }];
        let files = OwnerFiles::new("/owner".into(), &inputs, client, CHUNK_BYTES);
        for other in ["/owner/000002.sst", "/owner/LOCK"] {
            assert!(files.open(Path::new(other)).is_err(), "{other}");
            assert!(files.size(Path::new(other)).is_err(), "{other}");
        }
        assert_eq!(files.list(Path::new("/owner")).unwrap(), Some(vec!["000001.sst".to_owned()]));
    });
}

#[test]
fn a_file_that_is_here_is_not_fetched_and_one_that_is_gone_or_of_another_length_is() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |number: u8| vec![number; 5_000];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(listener.accept().unwrap().0, &bytes(9)));
        let client = connect(&address);
        let names = ["000001.sst", "000002.sst", "000003.sst"];
        let inputs = names.map(|name| InputFile { name: name.into(), bytes: 5_000, content_hash: Vec::new() });
        let here = names.map(|name| (name.to_owned(), folder.path().join(name)));
        std::fs::write(&here[0].1, bytes(1)).unwrap();
        std::fs::write(&here[2].1, [3]).unwrap();
        let files = OwnerFiles::new("/owner".into(), &inputs, client, CHUNK_BYTES).with_files_here(here.into());
        for (name, expected) in names.into_iter().zip([1, 9, 9]) {
            let file = files.open(&Path::new("/owner").join(name)).unwrap().unwrap();
            check(&*file, &bytes(expected), 0, 5_000);
        }
        // A job sees no file but its own, whatever is here.
        assert!(files.open(Path::new("/owner/000004.sst")).is_err());
        drop(files);
        let sent: u32 = served.join().unwrap().iter().sum();
        assert_eq!(sent, 2 * 5_000);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_reads_give_the_files_bytes(
        bytes in 1_usize..60_000,
        reads in prop::collection::vec((0.0_f64..1.05, 1_usize..12_000), 1..40),
    ) {
        read(bytes, |remote, file| {
            for (place, length) in &reads {
                check(remote, file, (bytes as f64 * place) as usize, *length);
            }
        });
    }
}
