//! Numbers as text: what commands take for an integer or a floating-point number, and how they
//! write one.
//!
//! Follows `string2ll` (Redis 7.0, `util.c`), `getDoubleFromObject` (`object.c`), which is C's
//! `strtod`, and `printf`'s `%.17g`.

use std::fmt::Write;

pub use super::text::Text;

/// An integer in the only form Redis takes: no `+`, no leading zeros or spaces, no `-0`.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        // The longest, 9 223 372 036 854 775 807, has 19 digits.
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // 19 nines are below 2⁶⁴.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A floating-point number: decimal, or hexadecimal as C's `0x1.8p3`, or `inf` or `infinity` in any
/// case, each with an optional sign. Refused as in Redis: nothing, NaN, space before it or anything
/// behind it, and what is beyond the range or so small that it becomes 0.
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let (negative, unsigned) = split_sign(text);
    if let Some(hexadecimal) = Hexadecimal::parse(unsigned) {
        let value = hexadecimal?.to_double()?;
        return Some(if negative { -value } else { value });
    }
    // Rust takes the same decimal forms as strtod, but tells no overflow and no underflow.
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let is_exact = if value.is_infinite() { is_infinity(unsigned) } else { value != 0.0 || !has_value(unsigned) };
    (is_exact && !value.is_nan()).then_some(value)
}

/// All of `text` as C's `strtod` reads it, which bounds of scores go by (`zslParseRange`,
/// `t_zset.c`): laxer than [`parse_double`]. It ends before a zero byte; nothing at all is 0; space
/// may stand before it; what is beyond the range is infinite, and what is too small is 0.
pub fn parse_double_leniently(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let space = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, unsigned) = split_sign(&text[space..]);
    if let Some(hexadecimal) = Hexadecimal::parse(unsigned) {
        let hexadecimal = hexadecimal?;
        let beyond = if hexadecimal.top() > 0 { f64::INFINITY } else { 0.0 };
        let value = hexadecimal.to_double().unwrap_or(beyond);
        return Some(if negative { -value } else { value });
    }
    let value: f64 = std::str::from_utf8(&text[space..]).ok()?.parse().ok()?;
    (!value.is_nan()).then_some(value)
}

/// As C's `%.17g`: 17 significant digits, the nearest ones, without trailing zeros; an exponent
/// below 10⁻⁴ and from 10¹⁷. `0.1` is `0.10000000000000001`. Infinities are `inf` and `-inf`. Every
/// number but NaN is parsed again as itself.
pub fn format_double(value: f64) -> Text {
    /// Integers below this are exact, and have no exponent.
    const PLAIN: f64 = 1e15;
    let mut text = Text::default();
    if value.is_nan() {
        text.append(b"nan");
        return text;
    }
    if value.abs() < PLAIN && value == value.trunc() && !(value == 0.0 && value.is_sign_negative()) {
        return Text::integer(value as i64);
    }
    if value.is_sign_negative() {
        text.append(b"-");
    }
    if value.is_infinite() {
        text.append(b"inf");
        return text;
    }
    let mut scientific = Text::default();
    // Writing to a Text cannot fail.
    let _ = write!(scientific, "{:.16e}", value.abs());
    // One digit, a point, 16 digits, "e", the exponent.
    let written = scientific.as_bytes();
    let mut digits = [written[0]; 17];
    digits[1..].copy_from_slice(&written[2..18]);
    let exponent = scientific_exponent(&written[19..]);
    let significant = digits.iter().rposition(|&digit| digit != b'0').map_or(1, |last| last + 1);
    let digits = &digits[..significant];
    match exponent {
        -4..0 => {
            text.append(&b"0.000"[..1 + exponent.unsigned_abs() as usize]);
            text.append(digits);
        }
        0..17 => {
            let whole = exponent as usize + 1;
            if whole < significant {
                text.append(&digits[..whole]);
                text.append(b".");
                text.append(&digits[whole..]);
            } else {
                text.append(digits);
                text.append(&[b'0'; 17][..whole - significant]);
            }
        }
        _ => {
            text.append(&digits[..1]);
            if significant > 1 {
                text.append(b".");
                text.append(&digits[1..]);
            }
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(text, "e{sign}{:02}", exponent.unsigned_abs());
        }
    }
    text
}

fn scientific_exponent(text: &[u8]) -> i32 {
    let (negative, digits) = split_sign(text);
    let magnitude = digits.iter().fold(0, |value, digit| value * 10 + i32::from(digit - b'0'));
    if negative { -magnitude } else { magnitude }
}

/// Whether there is a minus, and what follows the sign.
pub(super) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', unsigned @ ..] => (true, unsigned),
        [b'+', unsigned @ ..] => (false, unsigned),
        unsigned => (false, unsigned),
    }
}

pub(super) fn is_infinity(unsigned: &[u8]) -> bool {
    unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity")
}

/// Whether a decimal number has a digit other than 0 in front of its exponent.
fn has_value(unsigned: &[u8]) -> bool {
    unsigned.iter().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| matches!(byte, b'1'..=b'9'))
}

/// A hexadecimal number, as C's `strtod` takes it: `mantissa` × 2^`exponent`.
#[derive(Clone, Copy)]
pub(super) struct Hexadecimal {
    /// At most 31 digits. Its last bit is also set if a digit that was left out is not 0: right for
    /// every rounding to up to 120 bits.
    pub(super) mantissa: u128,
    pub(super) exponent: i64,
}

impl Hexadecimal {
    /// None: not hexadecimal at all. Some(None): begins as such, but is no number.
    pub(super) fn parse(unsigned: &[u8]) -> Option<Option<Self>> {
        match unsigned {
            [b'0', b'x' | b'X', digits @ ..] => Some(Self::parse_digits(digits)),
            _ => None,
        }
    }

    fn parse_digits(text: &[u8]) -> Option<Self> {
        const MAX_DIGITS: u32 = 31;
        let (mut mantissa, mut exponent, mut significant) = (0u128, 0i64, 0);
        let (mut any, mut after_point, mut left_out) = (false, false, false);
        let mut rest = text;
        while let [byte, tail @ ..] = rest {
            let Some(digit) = char::from(*byte).to_digit(16) else {
                if *byte != b'.' || after_point {
                    break;
                }
                after_point = true;
                rest = tail;
                continue;
            };
            any = true;
            if significant == MAX_DIGITS {
                left_out |= digit != 0;
                exponent += 4;
            } else {
                mantissa = mantissa << 4 | u128::from(digit);
                significant += u32::from(mantissa != 0);
            }
            exponent -= if after_point { 4 } else { 0 };
            rest = tail;
        }
        if let [b'p' | b'P', power @ ..] = rest {
            exponent = exponent.saturating_add(parse_power(power)?);
        } else if !rest.is_empty() {
            return None;
        }
        any.then_some(Self { mantissa: mantissa | u128::from(left_out), exponent })
    }

    /// The exponent of two of the highest bit.
    fn top(self) -> i64 {
        self.exponent.saturating_add(127 - i64::from(self.mantissa.leading_zeros()))
    }

    /// The nearest double. None: beyond the range, or so small that it would become 0.
    fn to_double(self) -> Option<f64> {
        if self.mantissa == 0 {
            return Some(0.0);
        }
        let top = self.top();
        if !(-1080..=1023).contains(&top) {
            return None;
        }
        let unit = (top - 52).max(-1074);
        let units = if unit > self.exponent {
            shift_right_nearest(self.mantissa, unit - self.exponent)
        } else {
            self.mantissa << (self.exponent - unit)
        };
        // Both are exact: at most 2⁵³, and a power of two.
        let power = if unit < -1022 { 1 << (unit + 1074) } else { ((unit + 1023) as u64) << 52 };
        let value = units as f64 * f64::from_bits(power);
        (value.is_finite() && value != 0.0).then_some(value)
    }
}

/// The integer behind `e` or `p`, with an optional sign; bounded where it no longer matters. None:
/// not an integer.
pub(super) fn parse_power(text: &[u8]) -> Option<i64> {
    const BOUND: i64 = 1 << 40;
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0, |value: i64, digit| (value * 10 + i64::from(digit - b'0')).min(BOUND));
    Some(if negative { -magnitude } else { magnitude })
}

/// `value` / 2^`bits`, rounded to the nearest integer, and to the even one of two. `bits` is not
/// negative.
pub(super) fn shift_right_nearest(value: u128, bits: i64) -> u128 {
    match bits {
        0 => value,
        1..=127 => {
            let (quotient, rest, half) = (value >> bits, value & ((1 << bits) - 1), 1 << (bits - 1));
            quotient + u128::from(rest > half || (rest == half && quotient & 1 == 1))
        }
        // Exactly one half goes to 0, the even one.
        128 => u128::from(value > 1 << 127),
        _ => 0,
    }
}
