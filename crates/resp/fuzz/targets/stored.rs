//! The bytes of stored values and keys.

use std::num::NonZeroU8;

use ecotone_engine::header::{Header, Kind, encode_inline};
use ecotone_keyspace::{CollectionId, Slot, Tag, layout};

pub fn run(input: &[u8]) {
    header(input);
    if let Some((id, rest)) = CollectionId::decode(input) {
        assert_eq!([&id.encode()[..], rest].concat(), input);
        assert_eq!(layout::ledger_id(&layout::ledger(id)), Some(id));
        let element = layout::element(id, &[rest]);
        assert_eq!(layout::sub_key(&element), rest);
        let all = layout::elements(id);
        assert!(*all.start <= *element && *element < *all.end);
        assert!(layout::is_known(&element));
    }
    // Any bytes may be a user's key, and any bytes may stand in the store.
    let key = layout::key(Slot::of(input), input);
    assert_eq!(layout::user_key(&key), input);
    assert!(layout::is_known(&key));
    let place = layout::position_of(&key).expect("a user's key has a place");
    assert!(place < layout::POSITIONS && *layout::from_position(place) <= *key);
    if layout::is_known(input)
        && let Some(place) = layout::position_of(input)
    {
        assert!(layout::from_position(place) <= input.to_vec());
        assert_eq!(*layout::key(Slot::of(layout::user_key(input)), layout::user_key(input)), *input);
    }
    if let Some(id) = layout::ledger_id(input) {
        assert_eq!(layout::ledger(id), input);
    }
}

fn header(stored: &[u8]) {
    let Ok(header) = Header::decode(stored) else { return };
    assert!(header.bytes <= stored.len());
    if header.kind == Kind::Inline {
        let mut again = Vec::new();
        encode_inline(&header.attributes, &mut again).expect("what was decoded is no 0");
        assert_eq!(again, &stored[..header.bytes], "a header has one encoding");
    }
    if let Some(tag) = Tag::of(&header.attributes) {
        assert_eq!(tag.encode().map(NonZeroU8::get), header.attributes.type_tag.map(NonZeroU8::get));
    }
}
