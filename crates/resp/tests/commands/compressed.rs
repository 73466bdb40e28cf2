//! Commands on values that the store compresses: read, changed in part, and in collections.

use std::time::{Duration, Instant};

use ecotone_engine::{CompressionMode, Durability, StoreSettings};

use crate::common::{Fixture, TestClient};

/// A value of some 300 bytes, which shrinks, and has no spaces.
fn value(number: usize) -> String {
    let reading =
        |at: usize| format!("\"sensor-{at}\":{{\"celsius\":{}.{},\"battery\":{}}}", at + 9, number % 97, number % 7);
    format!("{{\"device\":\"edge-{number:06}\",{}}}", (0..7).map(reading).collect::<Vec<_>>().join(","))
}

/// A store that compresses after a few dozen values.
fn fixture() -> Fixture {
    let mut settings = StoreSettings {
        durability: Durability::None,
        value_compression: CompressionMode::Zstd,
        ..StoreSettings::default()
    }
    .with_separation(128);
    settings.compression_parameters.samples.0 = 16 * 1024;
    settings.compression_parameters.window.0 = 8 * 1024;
    // What processor time it takes is no matter.
    settings.compression_parameters.written_byte_ns = 1e6;
    let fixture = Fixture::with(settings);
    let (began, store) = (Instant::now(), fixture.service.keyspace.only_store().unwrap());
    let mut client = fixture.client();
    for number in 0.. {
        let now = store.value_compression().unwrap();
        if now.installed_dictionaries > 0 && now.written.stored_bytes < now.written.raw_bytes * 3 / 4 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{now:?}");
        assert_eq!(client.ask(&format!("SET filler {}", value(number))), "+OK\r\n");
    }
    drop(client);
    fixture
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn check_strings(client: &mut TestClient<'_>, texts: &[String]) {
    for (number, text) in texts.iter().enumerate() {
        assert_eq!(client.ask(&format!("GET text:{number}")), bulk(text));
        assert_eq!(client.ask(&format!("STRLEN text:{number}")), format!(":{}\r\n", text.len()));
        assert_eq!(client.ask(&format!("GETRANGE text:{number} 20 59")), bulk(&text[20..60]));
        assert_eq!(client.ask(&format!("GETRANGE text:{number} -30 -1")), bulk(&text[text.len() - 30..]));
    }
}

#[test]
fn strings_are_read_and_changed_in_part() {
    let fixture = fixture();
    let mut client = fixture.client();
    let mut texts: Vec<String> = (0..60).map(value).collect();
    for (number, text) in texts.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("SET text:{number} {text}")), "+OK\r\n");
        if number % 2 == 0 {
            text.push_str(&value(number + 1));
            let appended = client.ask(&format!("APPEND text:{number} {}", value(number + 1)));
            assert_eq!(appended, format!(":{}\r\n", text.len()));
        }
        if number % 3 == 0 {
            text.replace_range(25..30, "?????");
            assert_eq!(client.ask(&format!("SETRANGE text:{number} 25 ?????")), format!(":{}\r\n", text.len()));
        }
    }
    check_strings(&mut client, &texts);
    let store = fixture.service.keyspace.only_store().unwrap();
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    check_strings(&mut client, &texts);
}

#[test]
fn large_collections_hold_what_was_put_there() {
    const FIELDS: usize = 400;
    let fixture = fixture();
    let mut client = fixture.client();
    for number in 0..FIELDS {
        assert_eq!(client.ask(&format!("HSET hash field{number} {}", value(number))), ":1\r\n");
        assert_eq!(client.ask(&format!("RPUSH list {}", value(number))), format!(":{}\r\n", number + 1));
    }
    assert!(fixture.large("hash").is_some() && fixture.large("list").is_some());
    let check = |client: &mut TestClient<'_>| {
        for number in 0..FIELDS {
            assert_eq!(client.ask(&format!("HGET hash field{number}")), bulk(&value(number)));
            assert_eq!(client.ask(&format!("HSTRLEN hash field{number}")), format!(":{}\r\n", value(number).len()));
            assert_eq!(client.ask(&format!("LINDEX list {number}")), bulk(&value(number)));
        }
        let all: String = (0..FIELDS).map(|number| bulk(&value(number))).collect();
        assert_eq!(client.ask("LRANGE list 0 -1"), format!("*{FIELDS}\r\n{all}"));
    };
    check(&mut client);
    let store = fixture.service.keyspace.only_store().unwrap();
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    check(&mut client);
    assert_eq!(client.ask("HINCRBY hash field7 1"), "-ERR hash value is not an integer\r\n");
    assert_eq!(client.ask("DEL hash list"), ":2\r\n");
}
