use std::collections::BTreeSet;
use std::ops::Bound;

use proptest::prelude::*;

use super::*;

type Places = BTreeSet<Vec<u8>>;

/// What the blocks tell is so.
fn check(blocks: &Blocks, places: &Places) {
    assert_eq!(blocks.elements(), places.len() as u64);
    let (mut before, mut start) = (0, vec![0; HEAD_BYTES]);
    let mut bytes = size_of::<Blocks>() + CHUNK_BYTES * blocks.chunks.len();
    for (index, chunk) in blocks.chunks.iter().enumerate() {
        assert_eq!(chunk.head, chunk.parts[0].head);
        assert!(chunk.parts.len() <= MAX_CHUNK_BLOCKS, "{}", chunk.parts.len());
        for part in 0..chunk.parts.len() {
            bytes += chunk.parts[part].bytes();
            let block = blocks.block(At { chunk: index, part });
            assert_eq!((block.before, &block.start), (before, &start));
            let end = block.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let within = places.range((Bound::Included(block.start.clone()), end)).count();
            assert_eq!(within as u64, block.elements, "{block:?}");
            before += block.elements;
            if let Some(end) = block.end {
                assert!(start < end);
                start = end;
            }
        }
    }
    assert_eq!(blocks.bytes, bytes);
    for end in [&blocks.first, &blocks.last].into_iter().flatten() {
        assert!(blocks.bytes() > blocks.bytes, "{end:?}");
    }
    assert!(blocks.first.as_ref().is_none_or(|first| places.first().is_none_or(|place| first <= place)));
    assert!(blocks.last.as_ref().is_none_or(|last| places.last().is_none_or(|place| last >= place)));
}

/// Cuts the block at `place` as who has looked at all of its elements would, every `every`
/// elements.
fn look(blocks: &mut Blocks, places: &Places, place: &[u8], every: usize, max_bytes: usize) {
    let block = blocks.at_place(place);
    let mut within: Vec<&Vec<u8>> = places.range(block.start.clone()..).collect();
    within.retain(|place| block.end.as_ref().is_none_or(|end| *place < end));
    let cut = |at: usize| Cut { at: separator(within[at - 1], within[at]).to_vec(), before: at as u64 };
    let cuts: Vec<Cut> = (1..within.len()).filter(|at| at % every == 0).map(cut).collect();
    assert_eq!(blocks.cut(&block.start, &cuts, max_bytes), Kept::Whole);
    if block.end.is_none()
        && let Some(last) = places.last()
    {
        blocks.end_at(last);
    }
    if block.before == 0
        && let Some(first) = places.first()
    {
        blocks.begin_at(first);
    }
}

#[derive(Debug, Clone)]
enum Change {
    Add(Vec<u8>),
    Remove(prop::sample::Index),
    Append(u8),
    Prepend(u8),
    Look(Vec<u8>, usize),
    Empty(prop::sample::Index, usize),
}

fn place() -> impl Strategy<Value = Vec<u8>> {
    let head = prop::sample::select(vec![0_u64, 1, 7, 1 << 40, u64::MAX - 9]);
    (head, prop::collection::vec(0_u8..4, 0..6)).prop_map(|(head, name)| [&head.to_be_bytes(), &name[..]].concat())
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => place().prop_map(Change::Add),
        3 => any::<prop::sample::Index>().prop_map(Change::Remove),
        3 => any::<u8>().prop_map(Change::Append),
        3 => any::<u8>().prop_map(Change::Prepend),
        4 => (place(), 1_usize..5).prop_map(|(place, every)| Change::Look(place, every)),
        1 => (any::<prop::sample::Index>(), 0_usize..300).prop_map(|(from, count)| Change::Empty(from, count)),
    ]
}

/// Elements that are added at an end at once.
const MANY: u64 = 140;

fn make(blocks: &mut Blocks, places: &mut Places, change: &Change, max_bytes: usize) {
    match change {
        Change::Add(place) => {
            if places.insert(place.clone()) {
                blocks.add(place, max_bytes);
            }
        }
        Change::Append(by) => {
            let last = places.last().map_or(5, |last| Split::of(last).head);
            for at in 1..=MANY {
                let place = [&last.saturating_add(at * u64::from(*by)).to_be_bytes()[..], &[at as u8]].concat();
                make(blocks, places, &Change::Add(place), max_bytes);
            }
        }
        Change::Prepend(by) => {
            let first = places.first().map_or(1 << 50, |first| Split::of(first).head);
            for at in 1..=MANY {
                let place = [&first.saturating_sub(at * u64::from(*by)).to_be_bytes()[..], &[at as u8]].concat();
                make(blocks, places, &Change::Add(place), max_bytes);
            }
        }
        Change::Remove(which) => {
            if !places.is_empty() {
                let place = which.get(&places.iter().collect::<Vec<_>>()).to_vec();
                places.remove(&place);
                assert_eq!(blocks.remove(&place), Kept::Whole);
            }
        }
        Change::Look(place, every) => look(blocks, places, place, *every, max_bytes),
        Change::Empty(from, count) => {
            if !places.is_empty() {
                let gone: Vec<_> = places.iter().skip(from.index(places.len())).take(*count).cloned().collect();
                for place in gone {
                    places.remove(&place);
                    assert_eq!(blocks.remove(&place), Kept::Whole);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_tell_how_many_elements_are_where(
        changes in prop::collection::vec(change(), 1..60),
        max_bytes in prop::sample::select(vec![0, 2000, usize::MAX]),
        asked in prop::collection::vec((place(), any::<prop::sample::Index>()), 20),
    ) {
        let (mut blocks, mut places) = (Blocks::new(0), Places::new());
        for change in &changes {
            make(&mut blocks, &mut places, change, max_bytes);
            check(&blocks, &places);
            prop_assert!(blocks.bytes <= max_bytes.max(Blocks::new(0).bytes));
        }
        for (place, rank) in &asked {
            let block = blocks.at_place(place);
            let is_within = block.start <= *place && block.end.as_ref().is_none_or(|end| place < end);
            prop_assert!(is_within, "{:?} {:?}", block, place);
            if !places.is_empty() {
                let rank = rank.index(places.len());
                let found = places.iter().nth(rank).unwrap();
                let (block, rank) = (blocks.at_rank(rank as u64), rank as u64);
                prop_assert!(block.before <= rank && rank < block.before + block.elements);
                prop_assert_eq!(block, blocks.at_place(found));
            }
        }
    }
}

#[test]
fn what_is_added_at_an_end_makes_blocks_without_a_look() {
    let (mut blocks, mut places) = (Blocks::new(0), Places::new());
    let place = |score: u64| [&score.to_be_bytes()[..], b"name"].concat();
    make(&mut blocks, &mut places, &Change::Add(place(1 << 32)), usize::MAX);
    look(&mut blocks, &places, b"", 1, usize::MAX);
    for at in 1..100_000 {
        make(&mut blocks, &mut places, &Change::Add(place((1 << 32) + at)), usize::MAX);
        make(&mut blocks, &mut places, &Change::Add(place((1 << 32) - at)), usize::MAX);
    }
    for rank in (0..places.len() as u64).step_by(1000) {
        let block = blocks.at_rank(rank);
        assert!(block.elements <= BLOCK_ELEMENTS + 1, "{block:?}");
    }
    // Little beside the places themselves, and nearly nothing once they are gone.
    assert!(blocks.bytes() < places.len(), "{}", blocks.bytes());
    while places.len() > 10 {
        let first = places.pop_first().unwrap();
        assert_eq!(blocks.remove(&first), Kept::Whole);
    }
    check(&blocks, &places);
    assert!(blocks.bytes() < 10_000, "{}", blocks.bytes());
}

#[test]
fn what_cannot_be_is_told() {
    let place = |score: u64| score.to_be_bytes().to_vec();
    let mut blocks = Blocks::new(1);
    assert_eq!(blocks.remove(&place(3)), Kept::Whole);
    assert_eq!(blocks.remove(&place(3)), Kept::Wrong);
    let cut = |at: u64, before| Cut { at: place(at), before };
    assert_eq!(Blocks::new(5).cut(&[], &[cut(1, 6)], usize::MAX), Kept::Wrong);
    assert_eq!(Blocks::new(5).cut(&[], &[cut(1, 4), cut(2, 3)], usize::MAX), Kept::Wrong);
    assert_eq!(Blocks::new(5).cut(&[], &[cut(1, 4), cut(2, 5)], usize::MAX), Kept::Whole);
}
