//! The sums of `INCRBYFLOAT` and `HINCRBYFLOAT`, and fixed-point text.
//!
//! Redis adds in the 80-bit floating point of x86 (C's `long double`: a mantissa of 64 bits) and
//! writes the sum with `%.17Lf`, without trailing zeros (`ld2string` with `LD_STR_HUMAN`,
//! `util.c`). Clients and replicas see that text, so it is done the same way here, in integers:
//! decimal to the nearest 64 bits, the sum rounded to 64 bits, and 17 exact decimals of it. Ties go
//! to the even neighbour, as IEEE 754 says.
//!
//! Not followed: the fewer bits of numbers below 2⁻¹⁶³⁸², of which 17 decimals show nothing.

use std::fmt;

use num_bigint::BigUint;

use super::number::{Hexadecimal, is_infinity, parse_power, shift_right_nearest, split_sign};

/// Redis refuses longer floating-point texts (`MAX_LONG_DOUBLE_CHARS`), in bytes.
const LONGEST_TEXT: usize = 5 * 1024;

/// The exponents of two of the largest number's highest bit and of the smallest number.
const EXPONENTS: std::ops::RangeInclusive<i64> = -16445..=16383;

/// Why two texts have no sum. [`Display`](fmt::Display) gives the text of `INCRBYFLOAT`, without
/// the code word `ERR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecimalError {
    /// The value is not a floating-point number. `HINCRBYFLOAT` says "hash value is not a float".
    Value,
    /// The increment is not a floating-point number.
    Increment,
    /// The increment is infinite. `HINCRBYFLOAT` says "value is NaN or Infinity", and says so
    /// before it looks at the value.
    InfiniteIncrement,
    /// The sum is infinite or no number.
    InfiniteSum,
}

impl fmt::Display for DecimalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value | Self::Increment => "value is not a valid float",
            Self::InfiniteIncrement | Self::InfiniteSum => "increment would produce NaN or Infinity",
        })
    }
}

impl std::error::Error for DecimalError {}

/// The sum of two floating-point texts, as `INCRBYFLOAT` writes it: no exponent, at most 17
/// decimals, `0` for what is nearer to 0.
pub fn add_decimals(value: &[u8], increment: &[u8]) -> Result<String, DecimalError> {
    let value = Parsed::new(value).ok_or(DecimalError::Value)?;
    let increment = Parsed::new(increment).ok_or(DecimalError::Increment)?;
    let Parsed::Finite(increment) = increment else { return Err(DecimalError::InfiniteIncrement) };
    let Parsed::Finite(value) = value else { return Err(DecimalError::InfiniteSum) };
    let sum = value.add(increment);
    if sum.top() > *EXPONENTS.end() { Err(DecimalError::InfiniteSum) } else { Ok(sum.to_fixed()) }
}

enum Parsed {
    Finite(Extended),
    Infinite,
}

impl Parsed {
    /// None: not a number, or one beyond the range.
    fn new(text: &[u8]) -> Option<Self> {
        if text.len() >= LONGEST_TEXT {
            return None;
        }
        let (negative, unsigned) = split_sign(text);
        if is_infinity(unsigned) {
            return Some(Self::Infinite);
        }
        let number = match Hexadecimal::parse(unsigned) {
            Some(hexadecimal) => {
                let Hexadecimal { mantissa, exponent } = hexadecimal?;
                Extended::nearest(negative, mantissa, exponent)
            }
            None => Extended::parse_decimal(negative, unsigned)?,
        };
        (number.mantissa == 0 || EXPONENTS.contains(&number.top())).then_some(Self::Finite(number))
    }
}

/// `mantissa` × 2^`exponent`, the highest bit of the mantissa set; or zero.
#[derive(Clone, Copy, Debug)]
struct Extended {
    negative: bool,
    mantissa: u64,
    exponent: i64,
}

impl Extended {
    /// The number nearest to `mantissa` × 2^`exponent`.
    fn nearest(negative: bool, mantissa: u128, exponent: i64) -> Self {
        if mantissa == 0 {
            return Self { negative, mantissa: 0, exponent: 0 };
        }
        let excess = 64 - i64::from(mantissa.leading_zeros());
        if excess <= 0 {
            let mantissa = (mantissa as u64) << -excess;
            return Self { negative, mantissa, exponent: exponent.saturating_add(excess) };
        }
        let rounded = shift_right_nearest(mantissa, excess);
        // Rounding up can carry into one bit more; the 64 below are then 0.
        let carried = rounded >> 64 != 0;
        let mantissa = if carried { 1 << 63 } else { rounded as u64 };
        Self { negative, mantissa, exponent: exponent.saturating_add(excess + i64::from(carried)) }
    }

    /// The exponent of two of the highest bit.
    fn top(self) -> i64 {
        self.exponent.saturating_add(63)
    }

    fn parse_decimal(negative: bool, unsigned: &[u8]) -> Option<Self> {
        let mut digits = Vec::new();
        let (mut after_point, mut power, mut significant) = (false, 0i64, 0i64);
        let mut rest = unsigned;
        while let [byte @ (b'0'..=b'9' | b'.'), tail @ ..] = rest {
            rest = tail;
            if *byte == b'.' {
                if after_point {
                    return None;
                }
                after_point = true;
                continue;
            }
            digits.push(byte - b'0');
            significant += i64::from(significant > 0 || *byte != b'0');
            power -= i64::from(after_point);
        }
        if let [b'e' | b'E', exponent @ ..] = rest {
            power += parse_power(exponent)?;
        } else if !rest.is_empty() {
            return None;
        }
        if digits.is_empty() {
            return None;
        }
        if significant == 0 {
            return Some(Self::nearest(negative, 0, 0));
        }
        // The range is about 10⁻⁴⁹⁵¹ to 10⁴⁹³²; the bound keeps the powers small.
        if (significant + power).abs() > 5000 {
            return None;
        }
        let digits = BigUint::from_radix_be(&digits, 10)?;
        Some(Self::nearest_decimal(negative, digits, power))
    }

    /// The number nearest to `digits` × 10^`power`, which is 5^`power` × 2^`power`.
    fn nearest_decimal(negative: bool, mut digits: BigUint, power: i64) -> Self {
        /// 64 bits of the mantissa, one to round, and one because the quotient can be one bit
        /// shorter. What remains decides ties.
        const QUOTIENT_BITS: i64 = 66;
        let fives = BigUint::from(5_u32).pow(power.unsigned_abs() as u32);
        let mut divisor = BigUint::from(1_u32);
        if power < 0 {
            divisor = fives
        } else {
            digits *= fives
        }
        let shift = divisor.bits() as i64 + QUOTIENT_BITS - digits.bits() as i64;
        if shift >= 0 {
            digits <<= shift as u64;
        } else {
            divisor <<= shift.unsigned_abs();
        }
        let quotient = &digits / &divisor;
        let has_rest = &quotient * divisor != digits;
        // Below 2^(QUOTIENT_BITS + 1).
        let quotient = quotient.iter_u64_digits().rev().fold(0_u128, |high, low| high << 64 | u128::from(low));
        Self::nearest(negative, quotient << 1 | u128::from(has_rest), power - shift - 1)
    }

    fn add(self, other: Self) -> Self {
        /// Bits below the larger mantissa: what is shifted out of it only decides ties.
        const GUARD_BITS: u32 = 62;
        if self.mantissa == 0 {
            return other;
        }
        if other.mantissa == 0 {
            return self;
        }
        let (large, small) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let high = u128::from(large.mantissa) << GUARD_BITS;
        let low = u128::from(small.mantissa) << GUARD_BITS;
        let distance = (large.exponent - small.exponent).min(127);
        let lost = low & ((1u128 << distance) - 1) != 0;
        let low = low >> distance | u128::from(lost);
        let exponent = large.exponent - i64::from(GUARD_BITS);
        if large.negative == small.negative {
            return Self::nearest(large.negative, high + low, exponent);
        }
        let (negative, difference) =
            if high >= low { (large.negative, high - low) } else { (small.negative, low - high) };
        Self::nearest(negative, difference, exponent)
    }

    /// At most 17 decimals.
    fn to_fixed(self) -> String {
        const UNIT: u128 = 10u128.pow(17);
        let magnitude = if self.exponent >= 0 {
            (BigUint::from(self.mantissa) << self.exponent.unsigned_abs()).to_string()
        } else {
            let units = shift_right_nearest(u128::from(self.mantissa) * UNIT, self.exponent.saturating_neg());
            let text = format!("{}.{:017}", units / UNIT, units % UNIT);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        if self.negative && magnitude != "0" { format!("-{magnitude}") } else { magnitude }
    }
}
