//! Streams of requests in pieces, and streams that were damaged.

use ecotone_resp::protocol::request::{Limits, Parser};
use proptest::prelude::*;

use super::Chance;
use super::targets::requests::{Parsed, encoded, parse};

/// Small, so that short streams meet every limit.
const LIMITS: Limits = Limits { arguments: 6, bulk_bytes: 20, inline_bytes: 40 };

fn in_pieces(bytes: &[u8], cuts: &[usize]) -> Parsed {
    parse(bytes, cuts, &LIMITS)
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=20), 1..=6)
}

/// Bytes that matter to the protocol, more often than others.
fn telling_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => prop::sample::select(b"*$\r\n\"'\\x \t-01239a\0".to_vec()), 1 => any::<u8>()];
    prop::collection::vec(byte, 0..200)
}

proptest! {
    #[test]
    fn requests_come_out_as_they_went_in(requests in prop::collection::vec(request(), 0..6), cuts in prop::collection::vec(any::<usize>(), 0..12)) {
        let bytes: Vec<u8> = requests.iter().flat_map(|request| encoded(request)).collect();
        prop_assert_eq!(in_pieces(&bytes, &cuts), (requests, None, 0));
    }

    #[test]
    fn any_bytes_mean_the_same_in_pieces_and_whole(bytes in telling_bytes(), cuts in prop::collection::vec(any::<usize>(), 0..12)) {
        prop_assert_eq!(in_pieces(&bytes, &cuts), in_pieces(&bytes, &[]));
    }
}

#[test]
fn damaged_streams_mean_the_same_byte_by_byte_and_whole() {
    let telling = b"*$\r\n\"'\\ 0123456789-x\0";
    for seed in 0..5000 {
        let mut chance = Chance(seed);
        let mut bytes = Vec::new();
        for _ in 0..1 + chance.below(4) {
            let mut argument = || (0..chance.below(21)).map(|_| *chance.pick(telling)).collect::<Vec<u8>>();
            let request = [argument(), argument(), argument()];
            if chance.below(4) == 0 {
                bytes.extend_from_slice(&request.join(&b' '));
                bytes.push(b'\n');
            } else {
                bytes.extend_from_slice(&encoded(&request));
            }
        }
        for _ in 0..chance.below(4) {
            let at = chance.below(bytes.len());
            match chance.below(4) {
                0 => bytes[at] = *chance.pick(telling),
                1 => bytes.insert(at, *chance.pick(telling)),
                2 => bytes.truncate(at + 1),
                _ => bytes.extend_from_within(at..),
            }
        }
        let every: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(in_pieces(&bytes, &every), in_pieces(&bytes, &[]), "seed {seed}");
    }
}

#[test]
fn what_was_parsed_is_not_parsed_again() {
    let (mut parser, mut arguments) = (Parser::new(), Vec::new());
    let mut bytes = encoded(&[b"MSET".to_vec(), b"key".to_vec(), b"value".to_vec()]);
    assert_eq!(parser.parse(&bytes[..25], &LIMITS, &mut arguments), Ok(None));
    bytes[..23].fill(b'!');
    assert_eq!(parser.parse(&bytes, &LIMITS, &mut arguments), Ok(Some(bytes.len())));
    assert_eq!(&bytes[arguments[2].clone()], b"value");
}
