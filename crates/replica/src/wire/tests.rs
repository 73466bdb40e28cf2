use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..300, any::<u64>()]
}

fn epochs() -> impl Strategy<Value = Epoch> {
    numbers().prop_map(Epoch)
}

fn shards() -> impl Strategy<Value = ShardId> {
    any::<u32>().prop_map(ShardId)
}

fn members() -> impl Strategy<Value = MemberId> {
    numbers().prop_map(MemberId)
}

fn positions() -> impl Strategy<Value = Position> {
    (epochs(), numbers()).prop_map(|(epoch, number)| Position { epoch, number })
}

fn marks() -> impl Strategy<Value = Mark> {
    (positions(), any::<u32>()).prop_map(|(position, chain)| Mark { position, chain })
}

fn contents() -> impl Strategy<Value = ContentId> {
    (numbers(), any::<u128>()).prop_map(|(len, hash)| ContentId { len, hash })
}

fn file_kinds() -> impl Strategy<Value = FileKind> {
    prop::sample::select(FileKind::ALL.to_vec())
}

fn kinds() -> impl Strategy<Value = Kind> {
    let of_file = (file_kinds(), numbers(), numbers(), contents());
    (0..8, of_file).prop_map(|(which, (file, number, other, content))| match which {
        0 => Kind::Append { file, number, offset: other },
        1 => Kind::Truncate { file, number, len: other },
        2 => Kind::Finished { file, number, content },
        3 => Kind::Put { file, number },
        4 => Kind::Collect { content, number },
        5 => Kind::Delete { file, number },
        6 => Kind::Sync,
        _ => Kind::Clock { limit_ms: number },
    })
}

fn items_with_bytes() -> impl Strategy<Value = Vec<(Item, Vec<u8>)>> {
    let item = (kinds(), positions(), any::<u32>(), any::<u32>(), vec(any::<u8>(), 0..40));
    let item = item.prop_map(|(kind, position, checksum, chain, bytes)| {
        (Item { position, kind, bytes: bytes.len() as u64, checksum, chain }, bytes)
    });
    vec(item, 0..6)
}

fn incarnations() -> impl Strategy<Value = Incarnation> {
    let ids = (any::<[u8; 16]>(), any::<[u8; 16]>());
    ids.prop_map(|(directory, boot)| Incarnation { directory: DirectoryId(directory), boot: BootId(boot) })
}

fn resumes() -> impl Strategy<Value = Resume> {
    prop_oneof![Just(Resume::Stream), Just(Resume::Complete), Just(Resume::Rebuild)]
}

fn histories() -> impl Strategy<Value = History> {
    vec(marks(), 0..8).prop_map(|ends| ends.into_iter().fold(History::default(), |history, end| history.and(end)))
}

fn to_copies() -> impl Strategy<Value = ToCopyBody> {
    prop_oneof![
        (resumes(), histories(), any::<bool>()).prop_map(|(resume, history, is_distrusted)| ToCopyBody::Open {
            resume,
            history,
            is_distrusted
        }),
        (marks(), positions(), numbers(), numbers()).prop_map(|(last, sent, end_bytes, echo_us)| ToCopyBody::Beat {
            last,
            sent,
            end_bytes,
            echo_us
        }),
        Just(ToCopyBody::Whole),
    ]
}

fn to_primaries() -> impl Strategy<Value = ToPrimaryBody> {
    prop_oneof![
        (incarnations(), marks(), any::<bool>(), any::<bool>(), numbers()).prop_map(
            |(incarnation, applied, is_exact, is_whole, credit)| {
                ToPrimaryBody::Hello(Hello { incarnation, applied, is_exact, is_whole, credit })
            }
        ),
        (positions(), positions(), numbers(), numbers()).prop_map(|(received, synced, credit, now_us)| {
            ToPrimaryBody::Acknowledge(Acknowledgement { received, synced, credit, now_us })
        }),
        Just(ToPrimaryBody::IsWhole),
    ]
}

fn reports() -> impl Strategy<Value = ShardReport> {
    let serving = prop_oneof![
        Just(Serving::Replica),
        (epochs(), any::<bool>()).prop_map(|(epoch, has_lease)| Serving::Primary { epoch, has_lease }),
    ];
    let seeding = proptest::option::of((numbers(), numbers()));
    (shards(), epochs(), serving, positions(), any::<bool>(), numbers(), seeding).prop_map(
        |(shard, epoch, serving, position, is_whole, lag_bytes, seeding)| ShardReport {
            shard,
            epoch,
            serving,
            position,
            is_whole,
            lag_bytes,
            seeding,
        },
    )
}

fn plain_messages() -> impl Strategy<Value = Message> {
    let shard_epoch = || (shards(), epochs());
    prop_oneof![
        (numbers(), vec(shard_epoch(), 0..5))
            .prop_map(|(sent_us, asks)| Message::Heartbeat(Heartbeat { sent_us, asks })),
        (numbers(), vec(shard_epoch(), 0..5))
            .prop_map(|(sent_us, granted)| Message::Promise(Promise { sent_us, granted })),
        (shard_epoch(), numbers(), to_copies())
            .prop_map(|((shard, epoch), session, body)| Message::ToCopy(shard, ToCopy { epoch, session, body })),
        (shard_epoch(), numbers(), to_primaries())
            .prop_map(|((shard, epoch), session, body)| Message::ToPrimary(shard, ToPrimary { epoch, session, body })),
        vec(reports(), 0..4).prop_map(Message::Report),
        shard_epoch().prop_map(|(shard, epoch)| Message::Seal(shard, epoch)),
        (shard_epoch(), members(), incarnations(), positions(), any::<bool>()).prop_map(
            |((shard, epoch), member, incarnation, position, is_whole)| {
                Message::Sealed(SealReport { shard, member, epoch, incarnation, position, is_whole })
            }
        ),
        shard_epoch().prop_map(|(shard, epoch)| Message::Verify(shard, epoch)),
        (shard_epoch(), any::<bool>()).prop_map(|((shard, epoch), is_sound)| Message::Verified {
            shard,
            epoch,
            is_sound
        }),
        (shard_epoch(), vec(members(), 0..MAX_COPIES)).prop_map(|((shard, epoch), from)| Message::Repair {
            shard,
            epoch,
            from
        }),
        (shard_epoch(), any::<bool>()).prop_map(|((shard, epoch), is_whole)| Message::Repaired {
            shard,
            epoch,
            is_whole
        }),
        (shard_epoch(), numbers(), members(), resumes()).prop_map(|((shard, epoch), session, source, resume)| {
            Message::Seed { shard, epoch, session, source, resume }
        }),
        (shard_epoch(), proptest::option::of(members())).prop_map(|((shard, epoch), to)| Message::HandOver {
            shard,
            epoch,
            to
        }),
        shard_epoch().prop_map(|(shard, epoch)| Message::Force { shard, epoch }),
        (shard_epoch(), proptest::collection::btree_set(members(), 0..MAX_COPIES))
            .prop_map(|((shard, epoch), members)| Message::Excuse { shard, epoch, members }),
    ]
}

fn parcels() -> impl Strategy<Value = Parcel> {
    let with_items = (shards(), epochs(), numbers(), numbers(), items_with_bytes()).prop_map(
        |(shard, epoch, session, end, items)| {
            let (items, bytes) = items.into_iter().unzip();
            let body = ToCopyBody::Items { items, end_bytes: end };
            Parcel { message: Message::ToCopy(shard, ToCopy { epoch, session, body }), bytes }
        },
    );
    prop_oneof![3 => plain_messages().prop_map(Parcel::from), 1 => with_items]
}

fn parts() -> impl Strategy<Value = ListingPart> {
    let file = (file_kinds(), numbers(), numbers(), proptest::option::of(contents()))
        .prop_map(|(kind, number, len, content)| ListedFile { kind, number, len, content });
    prop_oneof![
        (marks(), numbers(), numbers(), numbers()).prop_map(|(mark, clock_limit_ms, files, pending)| {
            ListingPart::Head { mark, clock_limit_ms, files, pending }
        }),
        vec(file, 0..6).prop_map(ListingPart::Files),
        items_with_bytes().prop_map(ListingPart::Pending),
    ]
}

/// Bytes that are not quite what was written.
fn mutated(mut bytes: Vec<u8>, mutations: &[(usize, u8)], length: usize) -> Vec<u8> {
    for (at, byte) in mutations {
        let at = at % bytes.len();
        bytes[at] = *byte;
    }
    bytes.truncate(length % (bytes.len() + 1));
    bytes
}

proptest! {
    #[test]
    fn parcels_are_read_as_written(parcel in parcels()) {
        let bytes = encode(&parcel).unwrap();
        prop_assert_eq!(decode(&bytes), Ok(parcel));
        for length in 0..bytes.len() {
            prop_assert!(decode(&bytes[..length]).is_err(), "{} of {} bytes", length, bytes.len());
        }
        prop_assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn parts_of_listings_are_read_as_written(part in parts()) {
        let bytes = encode_part(&part).unwrap();
        prop_assert_eq!(decode_part(&bytes), Ok(part));
        for length in 0..bytes.len() {
            prop_assert!(decode_part(&bytes[..length]).is_err(), "{} of {} bytes", length, bytes.len());
        }
    }

    #[test]
    fn whatever_can_be_read_has_one_encoding(
        parcel in parcels(), mutations in vec((any::<usize>(), any::<u8>()), 1..4), length in any::<usize>()
    ) {
        let bytes = mutated(encode(&parcel).unwrap(), &mutations, length);
        if let Ok(other) = decode(&bytes) {
            prop_assert_eq!(encode(&other), Ok(bytes));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..200)) {
        let of_this_version = [&[VERSION], &bytes[..]].concat();
        for bytes in [&bytes[..], &of_this_version[..]] {
            if let Ok(parcel) = decode(bytes) {
                prop_assert_eq!(encode(&parcel).unwrap(), bytes);
            }
            if let Ok(part) = decode_part(bytes) {
                prop_assert_eq!(encode_part(&part).unwrap(), bytes);
            }
        }
    }
}

fn items_of(items: Vec<Item>, bytes: Vec<Vec<u8>>) -> Parcel {
    let body = ToCopyBody::Items { items, end_bytes: 0 };
    Parcel { message: Message::ToCopy(ShardId(1), ToCopy { epoch: Epoch(1), session: 1, body }), bytes }
}

fn append(bytes: u64) -> Item {
    let kind = Kind::Append { file: FileKind::Wal, number: 7, offset: 0 };
    Item::behind(Mark::default(), kind, bytes, 0)
}

#[test]
fn what_nobody_would_read_is_not_written() {
    let problem = |parcel: &Parcel| encode(parcel).unwrap_err().problem;
    assert!(matches!(problem(&items_of(vec![append(2)], vec![vec![1]])), Problem::Inconsistent(_)));
    assert!(matches!(problem(&items_of(vec![append(2)], Vec::new())), Problem::Inconsistent(_)));
    let whole = Message::ToCopy(ShardId(1), ToCopy { epoch: Epoch(1), session: 1, body: ToCopyBody::Whole });
    assert!(matches!(problem(&Parcel { message: whole, bytes: vec![vec![1]] }), Problem::Inconsistent(_)));
    let many = items_of(vec![append(0); MAX_ITEMS + 1], vec![Vec::new(); MAX_ITEMS + 1]);
    assert!(matches!(problem(&many), Problem::TooMany { .. }));
    let long = MAX_MESSAGE_BYTES as usize + 1;
    assert!(matches!(problem(&items_of(vec![append(long as u64)], vec![vec![0; long]])), Problem::TooMany { .. }));
    let asks = vec![(ShardId(1), Epoch(1)); MAX_SHARDS + 1];
    assert!(matches!(problem(&Message::Heartbeat(Heartbeat { sent_us: 1, asks }).into()), Problem::TooMany { .. }));
}

#[test]
fn lengths_that_no_parcel_has_take_no_memory() {
    // An item that says it has 2^63 bytes: refused by the limit, whatever follows.
    let mut item = append(0);
    item.bytes = 1 << 63;
    let mut w = Writer::new();
    w.byte(VERSION);
    w.byte(3);
    write_shard(ShardId(1), Epoch(1), &mut w);
    w.number(1);
    w.byte(1);
    w.number(0);
    w.count(1);
    write_item(&item, &mut w);
    let refused = decode(&w.done()).unwrap_err().problem;
    assert_eq!(refused, Problem::TooMany { found: 1 << 63, limit: MAX_MESSAGE_BYTES });
}

#[test]
fn the_longest_parcels_are_within_the_limit() {
    let large = u64::MAX;
    let content = ContentId { len: large, hash: u128::MAX };
    let kind = Kind::Finished { file: FileKind::Table, number: large, content };
    let position = Position { epoch: Epoch(large), number: large };
    let item = Item { position, kind, bytes: 0, checksum: u32::MAX, chain: u32::MAX };
    let kind = Kind::Append { file: FileKind::Wal, number: large, offset: large };
    let long = Item { kind, bytes: MAX_MESSAGE_BYTES, ..item };
    let mut items = vec![item; MAX_ITEMS - 1];
    items.push(long);
    let mut bytes = vec![Vec::new(); MAX_ITEMS - 1];
    bytes.push(vec![7; MAX_MESSAGE_BYTES as usize]);
    let body = ToCopyBody::Items { items, end_bytes: large };
    let said = ToCopy { epoch: Epoch(large), session: large, body };
    let items = Parcel { message: Message::ToCopy(ShardId(u32::MAX), said), bytes };
    let report = ShardReport {
        shard: ShardId(u32::MAX),
        epoch: Epoch(large),
        serving: Serving::Primary { epoch: Epoch(large), has_lease: true },
        position,
        is_whole: true,
        lag_bytes: large,
        seeding: Some((large, large)),
    };
    for parcel in [items, Message::Report(vec![report; MAX_SHARDS]).into()] {
        let bytes = encode(&parcel).unwrap();
        assert!(bytes.len() <= MAX_PARCEL_BYTES, "{} bytes", bytes.len());
        assert_eq!(decode(&bytes), Ok(parcel));
    }
}

#[test]
fn other_versions_are_told_apart_from_damage() {
    let mut bytes = encode(&Message::Seal(ShardId(1), Epoch(2)).into()).unwrap();
    bytes[0] = VERSION + 1;
    assert_eq!(decode(&bytes).unwrap_err().problem, Problem::Version(u64::from(VERSION) + 1));
}

#[test]
fn epochs_of_a_history_ascend() {
    let mark = |epoch| Mark { position: Position { epoch: Epoch(epoch), number: 1 }, chain: 0 };
    let history = History::default().and(mark(1)).and(mark(2));
    let body = ToCopyBody::Open { resume: Resume::Complete, history, is_distrusted: false };
    let said = ToCopy { epoch: Epoch(3), session: 1, body };
    let mut bytes = encode(&Message::ToCopy(ShardId(1), said).into()).unwrap();
    // The epoch of the second end, behind the first one's six bytes.
    let at = bytes.len() - 1 - 6;
    assert_eq!(bytes[at], 2);
    bytes[at] = 1;
    assert!(matches!(decode(&bytes).unwrap_err().problem, Problem::Inconsistent(_)));
}

#[test]
fn each_kind_keeps_its_bytes() {
    let (shard, epoch) = (ShardId(5), Epoch(300));
    let position = Position { epoch: Epoch(4), number: 77 };
    let mark = Mark { position, chain: 0x0403_0201 };
    let incarnation = Incarnation { directory: DirectoryId([0xd1; 16]), boot: BootId([0xb0; 16]) };
    let content = ContentId { len: 1_000, hash: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100 };
    let item = |kind, bytes| Item { position, kind, bytes, checksum: 0x0807_0605, chain: 0x0c0b_0a09 };
    let items = vec![
        item(Kind::Append { file: FileKind::Wal, number: 9, offset: 128 }, 3),
        item(Kind::Truncate { file: FileKind::Segment, number: 2, len: 1 }, 0),
        item(Kind::Finished { file: FileKind::Table, number: 12, content }, 0),
        item(Kind::Put { file: FileKind::Current, number: 11 }, 2),
        item(Kind::Collect { content, number: 3 }, 0),
        item(Kind::Delete { file: FileKind::Table, number: 8 }, 0),
        item(Kind::Sync, 0),
        item(Kind::Clock { limit_ms: 1 }, 0),
    ];
    let mut bytes = vec![Vec::new(); items.len()];
    (bytes[0], bytes[3]) = (b"wal".to_vec(), b"M\n".to_vec());
    let to_copy = |body| Message::ToCopy(shard, ToCopy { epoch, session: 6, body });
    let to_primary = |body| Message::ToPrimary(shard, ToPrimary { epoch, session: 6, body });
    let history = History::default().and(mark);
    let serving = Serving::Primary { epoch, has_lease: true };
    let report = ShardReport { shard, epoch, serving, position, is_whole: true, lag_bytes: 16, seeding: Some((1, 2)) };
    let hello = Hello { incarnation, applied: mark, is_exact: true, is_whole: false, credit: 200 };
    let acknowledged =
        Acknowledgement { received: position, synced: Position::begin(Epoch(4)), credit: 200, now_us: 128 };
    let sealed = SealReport { shard, member: MemberId(2), epoch, incarnation, position, is_whole: true };
    let from = vec![MemberId(1), MemberId(3)];
    let parcels: Vec<(Parcel, &str)> = vec![
        (Message::Heartbeat(Heartbeat { sent_us: 1, asks: vec![(shard, epoch)] }).into(), "0101010105ac02"),
        (Message::Promise(Promise { sent_us: 1, granted: vec![(shard, epoch)] }).into(), "0102010105ac02"),
        (
            to_copy(ToCopyBody::Open { resume: Resume::Rebuild, history, is_distrusted: true }).into(),
            "010305ac0206000201044d0102030401",
        ),
        (
            Parcel { message: to_copy(ToCopyBody::Items { items, end_bytes: 10 }), bytes },
            "010305ac0206010a080101098001044d0305060708090a0b0c02000201044d0005060708\
             090a0b0c03030ce807000102030405060708090a0b0c0d0e0f044d0005060708090a0b0c\
             04040b044d0205060708090a0b0c0503e807000102030405060708090a0b0c0d0e0f044d\
             0005060708090a0b0c060308044d0005060708090a0b0c07044d0005060708090a0b0c08\
             01044d0005060708090a0b0c77616c4d0a",
        ),
        (
            to_copy(ToCopyBody::Beat { last: mark, sent: position, end_bytes: 1, echo_us: 2 }).into(),
            "010305ac020602044d01020304044d0102",
        ),
        (to_copy(ToCopyBody::Whole).into(), "010305ac020603"),
        (
            to_primary(ToPrimaryBody::Hello(hello)).into(),
            "010405ac020600d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1b0b0b0b0b0b0b0b0b0b0b0b0b0\
             b0b0b0044d010203040100c801",
        ),
        (to_primary(ToPrimaryBody::Acknowledge(acknowledged)).into(), "010405ac020601044d0400c8018001"),
        (to_primary(ToPrimaryBody::IsWhole).into(), "010405ac020602"),
        (
            Message::Report(vec![report, ShardReport { serving: Serving::Replica, seeding: None, ..report }]).into(),
            "01050205ac0201ac0201044d011001010205ac0200044d011000",
        ),
        (Message::Seal(shard, epoch).into(), "010605ac02"),
        (
            Message::Sealed(sealed).into(),
            "010705ac0202d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1b0b0b0b0b0b0b0b0b0b0b0b0b0b0\
             b0b0044d01",
        ),
        (Message::Verify(shard, epoch).into(), "010805ac02"),
        (Message::Verified { shard, epoch, is_sound: true }.into(), "010905ac0201"),
        (Message::Repair { shard, epoch, from }.into(), "010a05ac02020103"),
        (Message::Repaired { shard, epoch, is_whole: false }.into(), "010b05ac0200"),
        (
            Message::Seed { shard, epoch, session: 6, source: MemberId(3), resume: Resume::Complete }.into(),
            "010c05ac02060301",
        ),
        (Message::HandOver { shard, epoch, to: Some(MemberId(3)) }.into(), "010d05ac020103"),
        (Message::HandOver { shard, epoch, to: None }.into(), "010d05ac0200"),
        (Message::Force { shard, epoch }.into(), "010e05ac02"),
        (Message::Excuse { shard, epoch, members: BTreeSet::from([MemberId(3)]) }.into(), "010f05ac020103"),
    ];
    for (parcel, golden) in parcels {
        let bytes = encode(&parcel).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "{:?}", parcel.message);
    }
    let head = ListingPart::Head { mark, clock_limit_ms: 1, files: 1, pending: 1 };
    let listed = ListedFile { kind: FileKind::Table, number: 12, len: 1_000, content: Some(content) };
    let open = ListedFile { kind: FileKind::Wal, number: 9, len: 3, content: None };
    let pending = ListingPart::Pending(vec![(item(Kind::Sync, 1), vec![0xee])]);
    for (part, golden) in [
        (head, "0100044d01020304010101"),
        (ListingPart::Files(vec![listed, open]), "010102030ce80701e807000102030405060708090a0b0c0d0e0f01090300"),
        (pending, "01020107044d0105060708090a0b0cee"),
    ] {
        let bytes = encode_part(&part).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "{part:?}");
    }
}
