use std::time::Instant;

use proptest::prelude::*;

use super::*;

const KINDS: [ValueKind; 6] = [
    ValueKind::Random,
    ValueKind::Half,
    ValueKind::Json,
    ValueKind::Text,
    ValueKind::Zeros(0.5),
    ValueKind::Zeros(1.0),
];

/// One value of a source of its own.
fn value(kind: ValueKind, seed: u64, key: u64, version: u64, bytes: u32) -> Vec<u8> {
    ValueSource::new(kind, seed, bytes).values().value(key, version, bytes).to_vec()
}

fn text(kind: ValueKind, key: u64, version: u64, bytes: u32) -> String {
    String::from_utf8(value(kind, 1, key, version, bytes)).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_kind_has_one_name_and_nonsense_is_refused_with_the_choices() {
    for (kind, name) in KINDS.into_iter().zip(["random", "half", "json", "text", "zeros:0.5", "zeros:1"]) {
        assert_eq!(kind.to_string(), name);
        assert_eq!(name.parse::<ValueKind>().unwrap(), kind);
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<ValueKind>(&format!("\"{name}\"")).unwrap(), kind);
    }
    for name in ["", "JSON", "zeros", "zeros:", "zeros:half", "zero:0.5"] {
        let message = name.parse::<ValueKind>().unwrap_err().to_string();
        assert!(message.contains("random, half, json, text, zeros:SHARE"), "{message}");
    }
    for name in ["zeros:1.01", "zeros:-0.1", "zeros:NaN", "zeros:inf"] {
        let message = name.parse::<ValueKind>().unwrap_err().to_string();
        assert!(message.contains("between 0 and 1"), "{message}");
    }
}

#[test]
fn telemetry_never_changes() {
    let golden = |key, version, bytes| text(ValueKind::Json, key, version, bytes);
    assert_eq!(golden(17, 12_345, 5), "36701");
    assert_eq!(golden(17, 12_345, 40), r#"{"device":"gw-3548","seq":99113221     }"#);
    assert_eq!(
        golden(17, 12_345, 300),
        concat!(
            r#"{"device":"gw-3548","seq":99113221,"ts":1772366646910,"fw":"2.4.1","state":"active","site":"warsaw","#,
            r#""lat":52.2408,"lon":21.0745,"batt":24,"temp":21.44,"humi":38.15,"pres":994.7,"volt":14.41,"#,
            r#""amps":12.68,"load":45.20,"flow":327.3,"fuel":75.10,"vibr":10.94,"oxyg":20.76,"nois":409.8,"#,
            r#""torq":341.3      }"#,
        )
    );
    assert_eq!(
        golden(18, 12_346, 450),
        concat!(
            r#"{"device":"gw-4055","seq":72982125,"ts":1772366646934,"fw":"2.3.7","state":"active","site":"naples","#,
            r#""lat":40.8652,"lon":14.3590,"batt":38,"temp":27.58,"humi":36.97,"pres":994.3,"volt":13.09,"#,
            r#""amps":11.93,"load":30.81,"flow":323.0,"fuel":57.70,"vibr":10.69,"oxyg":20.66,"nois":407.7,"#,
            r#""torq":327.7,"windows":[{"sensor":"temp","status":"ok","seconds":60,"min":27.44,"max":27.68,"#,
            r#""avg":27.63}]                                                               }"#,
        )
    );
}

#[test]
fn lines_of_a_log_never_change() {
    assert_eq!(
        text(ValueKind::Text, 17, 12_345, 200),
        concat!(
            "2026-03-01T00:04:06.903Z ERROR network-0 id=d07668: mioneachour tion diometretriol at\n",
            "2026-03-01T00:04:06.906Z ERROR command-6 id=e33c5d: trealanes was the nioseapevond failed the request roubi leasea",
        )
    );
    assert_eq!(
        text(ValueKind::Text, 18, 12_346, 70),
        "2026-03-01T00:04:06.923Z INFO  gateway-2 id=6332b7: dichean the mogeal"
    );
}

#[test]
fn random_values_never_change() {
    let golden = |kind, version| hex(&value(kind, 1, 17, version, 24));
    assert_eq!(golden(ValueKind::Random, 0), "25b721e17e64f41cef1864de411d0e5095caff050e9d617b");
    assert_eq!(golden(ValueKind::Random, 12_345), "3f7abce89f95e43305df5b6fa99c074c9034e30c034fefa2");
    assert_eq!(golden(ValueKind::Half, 12_345), "473a446b4f4129014f12294e0a2134585f1716727c113e4f");
    assert_eq!(golden(ValueKind::Zeros(0.5), 12_345), "3f7abce89f95e43305df5b6f000000000000000000000000");
}

#[test]
fn half_is_pieces_of_which_each_half_is_the_other() {
    for version in [0, 1, 100, 10_000] {
        let value = value(ValueKind::Half, 1, 17, version, 1000);
        for piece in value.chunks(PIECE_BYTES) {
            let (random, again) = piece.split_at(PIECE_RANDOM_BYTES);
            assert_eq!(random, again);
        }
        assert!(value.iter().all(|&byte| byte <= HALF_BITS));
    }
}

#[test]
fn the_share_of_zeros_is_as_asked() {
    for (share, zeros) in [(0.0, 0), (0.25, 250), (0.5, 500), (1.0, 1000)] {
        let value = value(ValueKind::Zeros(share), 1, 17, 3, 1000);
        assert!(value[1000 - zeros..].iter().all(|&byte| byte == 0));
        let others = value[..1000 - zeros].iter().filter(|&&byte| byte == 0).count();
        assert!(others < 20, "{others} of the random bytes are zero, where one in 256 should be");
    }
}

#[test]
fn telemetry_of_a_device_changes_slowly() {
    let source = ValueSource::new(ValueKind::Json, 1, 1000);
    let mut values = source.values();
    let mut object = |version| -> serde_json::Value { serde_json::from_slice(values.value(5, version, 1000)).unwrap() };
    let (first, next) = (object(1000), object(1001));
    for fixed in ["device", "fw", "state", "site", "lat", "lon"] {
        assert_eq!(first[fixed], next[fixed]);
    }
    assert_eq!(first["seq"].as_u64().unwrap() + 1, next["seq"].as_u64().unwrap());
    assert!(first["ts"].as_u64().unwrap() < next["ts"].as_u64().unwrap());
    let change = |sensor: &str| (first[sensor].as_f64().unwrap() - next[sensor].as_f64().unwrap()).abs();
    for sensor in ["temp", "humi", "volt", "amps", "load", "fuel", "vibr", "oxyg"] {
        assert!(change(sensor) < 0.1, "{sensor}: {}", change(sensor));
    }
    let window = &first["windows"][0];
    let [min, avg, max] = ["min", "avg", "max"].map(|statistic| window[statistic].as_f64().unwrap());
    assert!(min <= avg && avg <= max && max - min < 1.0, "{window}");
    let days_later = object(700_000);
    assert!((first["temp"].as_f64().unwrap() - days_later["temp"].as_f64().unwrap()).abs() > 0.1);
}

/// Compared with the time of an operation, what a value costs must be little. Machines differ, so
/// the numbers are only printed.
#[test]
fn what_a_value_costs_is_printed() {
    const COUNT: u64 = 20_000;
    for kind in KINDS {
        for bytes in [100, 300, 1000, 4096] {
            let source = ValueSource::new(kind, 1, bytes);
            let mut values = source.values();
            let begin = Instant::now();
            let sum: u64 = (0..COUNT).map(|key| u64::from(values.next_value(mix64(key), bytes)[0])).sum();
            let ns = begin.elapsed().as_nanos() / u128::from(COUNT);
            println!("{kind} of {bytes} B: {ns} ns a value ({sum})");
        }
    }
}

proptest! {
    #[test]
    fn a_value_follows_from_seed_key_version_and_length_and_has_that_length(
        kind in proptest::sample::select(KINDS.to_vec()),
        seed: u64,
        wanted in proptest::collection::vec((any::<u64>(), any::<u64>(), 1u32..5000), 1..4),
    ) {
        let source = ValueSource::new(kind, seed, 5000);
        let mut values = source.values();
        for &(key, version, bytes) in &wanted {
            // Whatever the buffer held before.
            let value = values.value(key, version, bytes).to_vec();
            prop_assert_eq!(value.len(), bytes as usize);
            prop_assert_eq!(&value, &source.values().value(key, version, bytes).to_vec());
            prop_assert_eq!(values.value(key, version, bytes), &value[..]);
        }
    }

    #[test]
    fn versions_and_seeds_differ(kind in proptest::sample::select(KINDS[..5].to_vec()), key: u64, version in 0u64..1 << 40) {
        let first = value(kind, 1, key, version, 500);
        prop_assert_ne!(&first, &value(kind, 1, key, version + 1, 500));
        prop_assert_ne!(&first, &value(kind, 2, key, version, 500));
    }

    #[test]
    fn telemetry_is_valid_json_of_any_length(key: u64, version: u64, bytes in 1u32..5000) {
        let value = value(ValueKind::Json, 1, key, version, bytes);
        let parsed: serde_json::Value = serde_json::from_slice(&value).unwrap();
        prop_assert!(if bytes < 20 { parsed.is_number() } else { parsed.is_object() }, "{:?}", parsed);
    }

    #[test]
    fn lines_of_a_log_are_text(key: u64, version: u64, bytes in 1u32..5000) {
        let value = value(ValueKind::Text, 1, key, version, bytes);
        prop_assert!(value.iter().all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte)));
    }
}
