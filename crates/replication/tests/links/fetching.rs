//! Offers, and the bytes of files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::ids::{Epoch, MemberId};
use ecotone_mirror::names::{FileName, path_of};
use ecotone_mirror::seed::{Offer, OfferedFile};
use ecotone_replica::position::{Mark, Position};
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};
use ecotone_replica::wire::MAX_LISTED_FILES;
use ecotone_replication::Repair;
use ecotone_replication::error::Error;
use ecotone_replication::fetching::{Limiter, ask_repair, fetch_contents, fetch_offer, fetch_range};
use ecotone_replication::service::{Fetched, MAX_FETCHES_OF_SERVER};
use ecotone_types::Duty;
use tempfile::tempdir;

use crate::common::{Federation, SHARD, TestServer, wait};

const ONE: MemberId = MemberId(1);
const SESSION: u64 = 9;

const TABLE: FileName = FileName::new(FileKind::Table, 12);
const WAL: FileName = FileName::new(FileKind::Wal, 9);

fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// What server 1 offers: a table and a WAL of which not all is offered, and `more` files that nobody
/// fetches.
fn offer(folder: &Path, more: u64) -> Offer {
    let content = ContentId { len: 1_500_000, hash: 77 };
    let mut files = vec![
        OfferedFile { file: TABLE, len: 1_500_000, content: Some(content) },
        OfferedFile { file: WAL, len: 1_000, content: None },
    ];
    files.extend((0..more).map(|at| OfferedFile {
        file: FileName::new(FileKind::Table, 100 + at),
        len: at,
        content: Some(ContentId { len: at, hash: u128::from(at) << 64 }),
    }));
    let links = folder.join("offer");
    fs::create_dir(&links).unwrap();
    for (file, length) in [(TABLE, 1_500_000), (WAL, 5_000)] {
        fs::write(path_of(&links, file), contents(length)).unwrap();
    }
    let mark = Mark { position: Position { epoch: Epoch(3), number: 44 }, chain: 5 };
    let item = |number, length: usize| {
        let kind = Kind::Append { file: FileKind::Manifest, number: 5, offset: number };
        (Item::behind(mark, kind, length as u64, 3), vec![number as u8; length])
    };
    // Of which no two fit into one message, and some that do.
    let mut pending: Vec<(Item, Vec<u8>)> = (0..3).map(|number| item(number, 700_000)).collect();
    pending.extend((3..600).map(|number| item(number, 10)));
    Offer::new(mark, 1_234, files, pending, links)
}

fn two_with_offer(root: &Path, more: u64) -> (Federation, Arc<Offer>) {
    let federation = Federation::new(root, 3);
    let offer = Arc::new(offer(root, more));
    federation.servers[0].notes.offers.lock().insert(SESSION, offer.clone());
    (federation, offer)
}

fn of_offer(file: FileName) -> Fetched {
    Fetched::OfOffer { session: SESSION, file }
}

fn fetch(by: &TestServer, what: Fetched, range: (u64, u64)) -> Result<Vec<u8>, Error> {
    let mut came = Vec::new();
    let sink = |bytes: &[u8]| {
        came.extend_from_slice(bytes);
        Ok(())
    };
    fetch_range(by.links(), ONE, SHARD, what, range, None, sink).map(|()| came)
}

#[test]
fn an_offer_is_listed_as_it_is() {
    let root = tempdir().unwrap();
    let (federation, offer) = two_with_offer(root.path(), MAX_LISTED_FILES as u64 + 10);
    let listing = fetch_offer(federation.servers[1].links(), ONE, SHARD, SESSION).unwrap();
    assert_eq!((listing.mark, listing.clock_limit_ms), (offer.mark, 1_234));
    assert_eq!(listing.files, offer.files);
    assert!(listing.pending == offer.pending, "{} items", listing.pending.len());
    let other = fetch_offer(federation.servers[1].links(), ONE, SHARD, SESSION + 1);
    assert!(matches!(other, Err(Error::NotThere(_))), "{other:?}");
}

/// Threads that send what another copy is filled with say so, however the sending ends.
#[test]
fn who_sends_files_seeds() {
    let root = tempdir().unwrap();
    let (federation, _) = two_with_offer(root.path(), 0);
    let (one, two) = (&federation.servers[0], &federation.servers[1]);
    fetch_offer(two.links(), ONE, SHARD, SESSION).unwrap();
    assert_eq!(fetch(two, of_offer(WAL), (0, 1_000)).unwrap().len(), 1_000);
    assert!(fetch(two, of_offer(FileName::new(FileKind::Table, 99)), (0, 1)).is_err());
    let seeds = [Some(Duty::Seed), None].repeat(3);
    wait("the end of the last one", || one.notes.duties.0.lock().len() == seeds.len());
    assert_eq!(*one.notes.duties.0.lock(), seeds);
}

#[test]
fn files_are_fetched_and_what_is_cut_off_is_resumed() {
    let root = tempdir().unwrap();
    let (federation, _) = two_with_offer(root.path(), 0);
    let two = &federation.servers[1];
    let all = contents(1_500_000);
    assert!(fetch(two, of_offer(TABLE), (0, 1_500_000)).unwrap() == all);
    // As far as it is offered, though the file goes on.
    assert_eq!(fetch(two, of_offer(WAL), (0, 1_000)).unwrap(), contents(1_000));
    assert_eq!(fetch(two, of_offer(WAL), (990, 10)).unwrap(), contents(1_000)[990..]);
    // The disk is full half-way; what was taken stays, and the rest follows.
    let mut came = Vec::new();
    let full = fetch_range(two.links(), ONE, SHARD, of_offer(TABLE), (0, 1_500_000), None, |bytes| {
        if came.len() > 600_000 {
            return Err(Error::Stopped);
        }
        came.extend_from_slice(bytes);
        Ok(())
    });
    assert!(matches!(full, Err(Error::Stopped)), "{full:?}");
    assert!(came.len() > 600_000 && came.len() < 1_500_000);
    let begin = came.len() as u64;
    came.extend(fetch(two, of_offer(TABLE), (begin, 1_500_000 - begin)).unwrap());
    assert!(came == all);
    // It was longer when it was offered.
    let short = fetch(two, of_offer(TABLE), (1_400_000, 200_000));
    assert!(matches!(short, Err(Error::NotThere(_))), "{short:?}");
}

#[test]
fn a_fetch_goes_on_when_the_source_comes_back() {
    let root = tempdir().unwrap();
    let (mut federation, _) = two_with_offer(root.path(), 0);
    let [one, two, _] = &mut federation.servers[..] else { panic!("three") };
    let slow = Limiter::new(Some(2_000_000));
    let mut came = Vec::new();
    let cut = fetch_range(two.links(), ONE, SHARD, of_offer(TABLE), (0, 1_500_000), Some(&slow), |bytes| {
        came.extend_from_slice(bytes);
        if came.len() > 300_000 {
            one.hang_up();
        }
        Ok(())
    });
    assert!(matches!(cut, Err(Error::Unreachable { .. })), "{cut:?}");
    assert!(came.len() < 1_500_000);
    one.listen();
    wait("the rest", || {
        let begin = came.len() as u64;
        let sink = |bytes: &[u8]| {
            came.extend_from_slice(bytes);
            Ok(())
        };
        fetch_range(two.links(), ONE, SHARD, of_offer(TABLE), (begin, 1_500_000 - begin), None, sink).is_ok()
    });
    assert!(came == contents(1_500_000));
}

#[test]
fn a_limit_is_kept() {
    let root = tempdir().unwrap();
    let (federation, _) = two_with_offer(root.path(), 0);
    let two = &federation.servers[1];
    let (limiter, begun) = (Limiter::new(Some(1_000_000)), Instant::now());
    let mut came = 0;
    fetch_range(two.links(), ONE, SHARD, of_offer(TABLE), (0, 750_000), Some(&limiter), |bytes| {
        came += bytes.len();
        // What is asked for at a time is free, an eighth of a second's worth.
        assert!(came as f64 <= 125_000.0 + begun.elapsed().as_secs_f64() * 1_010_000.0, "{came} bytes");
        Ok(())
    })
    .unwrap();
    assert_eq!(came, 750_000);
    assert!(begun.elapsed() >= Duration::from_millis(620), "{:?}", begun.elapsed());
}

#[test]
fn finished_files_are_given_by_their_content() {
    let root = tempdir().unwrap();
    let (federation, _) = two_with_offer(root.path(), 0);
    let path = root.path().join("finished");
    fs::write(&path, contents(300_000)).unwrap();
    federation.servers[0].notes.finished.lock().insert(31, path);
    let file = FileName::new(FileKind::Segment, 31);
    let finished = |len| Fetched::Finished { file, content: ContentId { len, hash: u128::MAX - 1 } };
    assert!(fetch(&federation.servers[1], finished(300_000), (0, 300_000)).unwrap() == contents(300_000));
    let other = fetch(&federation.servers[1], finished(300_001), (0, 10));
    assert!(matches!(other, Err(Error::NotThere(_))), "{other:?}");
}

#[test]
fn servers_without_a_copy_get_nothing() {
    let root = tempdir().unwrap();
    let (mut federation, _) = two_with_offer(root.path(), 0);
    federation.map.shards.get_mut(&SHARD).unwrap().copies.remove(&MemberId(3));
    federation.publish();
    let three = &federation.servers[2];
    let listing = fetch_offer(three.links(), ONE, SHARD, SESSION);
    assert!(matches!(listing, Err(Error::Refused(_))), "{listing:?}");
    let bytes = fetch(three, of_offer(TABLE), (0, 10));
    assert!(matches!(bytes, Err(Error::Refused(_))), "{bytes:?}");
    federation.map.shards.remove(&SHARD);
    federation.publish();
    let bytes = fetch(&federation.servers[1], of_offer(TABLE), (0, 10));
    assert!(matches!(bytes, Err(Error::Refused(_))), "{bytes:?}");
}

#[test]
fn one_server_fetches_so_much_at_a_time_and_others_go_on() {
    let root = tempdir().unwrap();
    let (federation, _) = two_with_offer(root.path(), 0);
    // Longer than what the windows of HTTP/2 take from a thread that sends.
    let path = root.path().join("long");
    let length = 24 << 20;
    fs::File::create(&path).unwrap().set_len(length).unwrap();
    federation.servers[0].notes.finished.lock().insert(50, path);
    let file = FileName::new(FileKind::Table, 50);
    let long = Fetched::Finished { file, content: ContentId { len: length, hash: 1 } };
    let [_, two, three] = &federation.servers[..] else { panic!("three") };
    std::thread::scope(|scope| {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let may_go_on = Arc::new(parking_lot::Mutex::new(may_go_on));
        for _ in 0..MAX_FETCHES_OF_SERVER {
            let (begun, may_go_on) = (begun.clone(), may_go_on.clone());
            scope.spawn(move || {
                let mut is_first = true;
                fetch_range(two.links(), ONE, SHARD, long, (0, length), None, |_| {
                    if std::mem::take(&mut is_first) {
                        begun.send(()).unwrap();
                        // Until the sender is dropped.
                        let _ = may_go_on.lock().recv();
                    }
                    Ok(())
                })
                .unwrap();
            });
        }
        (0..MAX_FETCHES_OF_SERVER).for_each(|_| has_begun.recv().unwrap());
        let one_more = fetch(two, of_offer(TABLE), (0, 10));
        assert!(matches!(one_more, Err(Error::Busy(_))), "{one_more:?}");
        assert_eq!(fetch(three, of_offer(TABLE), (0, 10)).unwrap(), contents(10));
        drop(go_on);
    });
    wait("its places to be free", || fetch(two, of_offer(TABLE), (0, 10)).is_ok());
}

#[test]
fn who_is_not_attached_has_no_copies() {
    let root = tempdir().unwrap();
    let mut federation = Federation::new(root.path(), 2);
    let one = &mut federation.servers[0];
    one.hang_up();
    one.service = ecotone_replication::service::Service::new();
    one.listen();
    wait("the answer", || match fetch_offer(federation.servers[1].links(), ONE, SHARD, SESSION) {
        Err(Error::Unreachable { what, .. }) => what.contains("has no copies"),
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_primary_says_what_all_its_finished_files_hold() {
    let root = tempdir().unwrap();
    let federation = Federation::new(root.path(), 2);
    let asker = federation.servers[1].links();
    let refused = fetch_contents(asker, ONE, SHARD);
    assert!(matches!(refused, Err(Error::NotThere(_))), "{refused:?}");
    let mark = Mark { position: Position { epoch: Epoch(3), number: 44 }, chain: 5 };
    // More than one message holds.
    let content = |at: u64| ContentId { len: at, hash: u128::from(at) << 70 };
    let file = |at| FileName::new(if at % 2 == 0 { FileKind::Table } else { FileKind::Segment }, at);
    let contents: BTreeMap<_, _> = (0..2 * MAX_LISTED_FILES as u64 + 7).map(|at| (file(at), content(at))).collect();
    *federation.servers[0].notes.contents.lock() = Some((mark, contents.clone()));
    assert_eq!(fetch_contents(asker, ONE, SHARD).unwrap(), (mark, contents));
    // What only grows has no content.
    *federation.servers[0].notes.contents.lock() = Some((mark, [(WAL, content(9))].into()));
    assert!(matches!(fetch_contents(asker, ONE, SHARD), Err(Error::Malformed { .. })));
}

#[test]
fn a_server_of_the_federation_has_another_one_compare_its_copy() {
    let root = tempdir().unwrap();
    let mut federation = Federation::new(root.path(), 3);
    // Whether it has a copy itself or not.
    federation.map.shards.get_mut(&SHARD).unwrap().copies.remove(&MemberId(3));
    federation.publish();
    let ask = |begin| ask_repair(federation.servers[2].links(), ONE, SHARD, begin);
    assert!(matches!(ask(false), Err(Error::NotThere(_))));
    assert_eq!(ask(true).unwrap(), Repair::default());
    let repair = Repair { files: 7, of_files: 9, ..Repair::default() };
    federation.servers[0].notes.repairs.lock().insert(SHARD, repair.clone());
    assert_eq!(ask(false).unwrap(), repair);
    let mut without = federation.map.clone();
    without.servers.remove(&MemberId(3));
    federation.servers[0].know(&without, Some(ONE));
    wait("its map", || matches!(ask(false), Err(Error::Refused(_))));
}
