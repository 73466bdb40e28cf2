//! Numbers as text, against what Redis 7.0.15 answered: `sums.txt` has `SET`, `INCRBYFLOAT` and the
//! answer, `doubles.txt` has a score for `ZADD` and the answer of `ZSCORE`.

use ecotone_resp::protocol::extended::{DecimalError, add_decimals};
use ecotone_resp::protocol::number::{format_double, parse_double, parse_double_leniently, parse_integer};
use proptest::prelude::*;

#[test]
fn integers_have_one_form() {
    for (text, value) in [
        ("0", 0),
        ("1", 1),
        ("-1", -1),
        ("1234567890", 1_234_567_890),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
    ] {
        assert_eq!(parse_integer(text.as_bytes()), Some(value));
    }
    for text in [
        "",
        "-",
        "+1",
        "-0",
        "00",
        "01",
        "-01",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "0x1",
        "--1",
        "9223372036854775808",
        "-9223372036854775809",
        "9999999999999999999",
        "10000000000000000000",
        "18446744073709551617",
        "99999999999999999999",
        "1\0",
    ] {
        assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn doubles_are_read_and_written_as_by_redis() {
    for line in include_str!("doubles.txt").lines() {
        let (text, expected) = line.split_once('|').unwrap();
        let answer =
            parse_double(text.as_bytes()).map_or("refused".to_owned(), |value| format_double(value).to_string());
        assert_eq!(answer, expected, "{text:?}");
    }
}

#[test]
fn sums_are_those_of_redis() {
    for line in include_str!("sums.txt").lines() {
        let [value, increment, expected] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let answer = add_decimals(value.as_bytes(), increment.as_bytes()).unwrap_or_else(|error| error.to_string());
        assert_eq!(answer, expected, "{value:?} + {increment:?}");
    }
}

#[test]
fn sums_that_are_none_say_why() {
    assert_eq!(add_decimals(b"x", b"1"), Err(DecimalError::Value));
    assert_eq!(add_decimals(b"1", b"1e"), Err(DecimalError::Increment));
    assert_eq!(add_decimals(b"inf", b"nan"), Err(DecimalError::Increment));
    assert_eq!(add_decimals(b"1", b"-inf"), Err(DecimalError::InfiniteIncrement));
    assert_eq!(add_decimals(b"inf", b"1"), Err(DecimalError::InfiniteSum));
    assert_eq!(add_decimals(b"1e4932", b"1e4932"), Err(DecimalError::InfiniteSum));
    assert_eq!(add_decimals(b"1e4933", b"1"), Err(DecimalError::Value));
    assert_eq!(add_decimals(b"1", b"1e-4960"), Err(DecimalError::Increment));
    assert_eq!(DecimalError::InfiniteIncrement.to_string(), "increment would produce NaN or Infinity");
}

#[test]
fn long_texts_are_numbers_up_to_a_bound() {
    let long = |digits: usize| format!("1.{}1", "0".repeat(digits - 3));
    assert_eq!(add_decimals(long(5 * 1024 - 1).as_bytes(), b"1").as_deref(), Ok("2"));
    assert_eq!(add_decimals(long(5 * 1024).as_bytes(), b"1"), Err(DecimalError::Value));
    assert_eq!(add_decimals("9".repeat(4933).as_bytes(), b"0").map(|sum| sum.len()), Err(DecimalError::Value));
    assert_eq!(add_decimals("9".repeat(4932).as_bytes(), b"0").map(|sum| sum.len()), Ok(4933));
    let zeros = "0".repeat(100_000);
    assert_eq!(parse_double(format!("0x{zeros}1p4").as_bytes()), Some(16.0));
    assert_eq!(parse_double(format!("0x1{zeros}p-400000").as_bytes()), Some(1.0));
    assert_eq!(parse_double(format!("0x0.{zeros}1p400004").as_bytes()), Some(1.0));
    assert_eq!(parse_double(format!("{zeros}1e{zeros}1").as_bytes()), Some(10.0));
}

proptest! {
    #[test]
    fn every_integer_is_read_as_itself(value in any::<i64>()) {
        prop_assert_eq!(parse_integer(value.to_string().as_bytes()), Some(value));
    }

    #[test]
    fn every_double_is_read_as_itself(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(!value.is_nan());
        let text = format_double(value);
        prop_assert_eq!(parse_double(text.as_bytes()).map(f64::to_bits), Some(bits), "{}", text);
    }

    #[test]
    fn whole_sums_are_exact(left in -1i64 << 62..1 << 62, right in -1i64 << 62..1 << 62) {
        prop_assert_eq!(add_decimals(left.to_string().as_bytes(), right.to_string().as_bytes()), Ok((left + right).to_string()));
    }

    #[test]
    fn short_decimals_have_no_surprises(left in -4_000_000i64..4_000_000, right in -4_000_000i64..4_000_000) {
        // Larger sums show in their last decimals that 64 bits do not hold them, as in Redis.
        let decimal = |millionths: i64| {
            let text = format!("{}.{:06}", millionths.abs() / 1_000_000, millionths.abs() % 1_000_000);
            let text = text.trim_end_matches('0').trim_end_matches('.').to_owned();
            if millionths < 0 { format!("-{text}") } else { text }
        };
        prop_assert_eq!(add_decimals(decimal(left).as_bytes(), decimal(right).as_bytes()), Ok(decimal(left + right)));
    }

    #[test]
    fn any_bytes_are_a_number_or_none(bytes in prop::collection::vec(prop::sample::select(b"0123456789.+-eExXpPinfaN \0\xff".to_vec()), 0..30)) {
        let double = parse_double(&bytes);
        prop_assert!(double.is_none_or(|value| !value.is_nan()));
        if parse_integer(&bytes).is_some() {
            prop_assert!(double.is_some());
        }
        // Both take the same forms, but for the range.
        let sum = add_decimals(&bytes, b"0");
        if double.is_some_and(f64::is_finite) {
            prop_assert!(sum.is_ok());
        }
    }
}

#[test]
fn bounds_are_read_as_by_strtod() {
    for (text, value) in [
        ("", Some(0.0)),
        ("\0x", Some(0.0)),
        ("1\0x", Some(1.0)),
        (" \t\n\u{b}\u{c}\r-1.5", Some(-1.5)),
        (" ", None),
        (" \0", None),
        ("1 ", None),
        ("x", None),
        ("1e", None),
        ("nan", None),
        ("-NaN", None),
        ("+infinity", Some(f64::INFINITY)),
        ("-INF", Some(f64::NEG_INFINITY)),
        ("1e400", Some(f64::INFINITY)),
        ("-1e400", Some(f64::NEG_INFINITY)),
        ("1e-400", Some(0.0)),
        ("0x1.8p1", Some(3.0)),
        ("0x", None),
        ("-0x1p5000", Some(f64::NEG_INFINITY)),
        ("0x1p-5000", Some(0.0)),
        ("0x0p5000", Some(0.0)),
    ] {
        assert_eq!(parse_double_leniently(text.as_bytes()), value, "{text:?}");
    }
}
