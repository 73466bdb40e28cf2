//! Natural numbers of any size: only what exact decimal conversions need.

use std::cmp::Ordering;

/// A natural number in limbs of 64 bits, the lowest first, without zeros at the high end.
#[derive(Clone, Debug)]
pub(super) struct Natural(Vec<u64>);

impl Natural {
    pub(super) fn new(value: u64) -> Self {
        let mut natural = Self(vec![value]);
        natural.trim();
        natural
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bits the number has; 0 for zero.
    pub(super) fn bits(&self) -> i64 {
        self.0.last().map_or(0, |high| self.0.len() as i64 * 64 - i64::from(high.leading_zeros()))
    }

    /// Becomes itself × `factor` + `summand`.
    pub(super) fn multiply_add(&mut self, factor: u64, summand: u64) {
        let mut carry = u128::from(summand);
        for limb in &mut self.0 {
            carry += u128::from(*limb) * u128::from(factor);
            *limb = carry as u64;
            carry >>= 64;
        }
        if carry > 0 {
            self.0.push(carry as u64);
        }
        self.trim();
    }

    /// Becomes itself × `base`^`exponent`.
    pub(super) fn multiply_power(&mut self, base: u64, exponent: u64) {
        let (mut factor, mut left) = (1u64, exponent);
        while left > 0 {
            match factor.checked_mul(base) {
                Some(larger) => {
                    factor = larger;
                    left -= 1;
                }
                None => {
                    self.multiply_add(factor, 0);
                    factor = 1;
                }
            }
        }
        self.multiply_add(factor, 0);
    }

    /// Becomes itself × 2^`bits`.
    pub(super) fn shift_left(&mut self, bits: u64) {
        self.multiply_add(1 << (bits % 64), 0);
        if !self.is_zero() {
            self.0.splice(..0, std::iter::repeat_n(0, (bits / 64) as usize));
        }
    }

    /// Takes `other` away if it is not larger; tells whether it did.
    pub(super) fn subtract_if_fits(&mut self, other: &Self) -> bool {
        let order = self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()));
        if order == Ordering::Less {
            return false;
        }
        let mut borrow = false;
        for (index, limb) in self.0.iter_mut().enumerate() {
            let taken = other.0.get(index).copied().unwrap_or(0);
            let (less, first) = limb.overflowing_sub(taken);
            let (less, second) = less.overflowing_sub(u64::from(borrow));
            *limb = less;
            borrow = first || second;
        }
        self.trim();
        true
    }

    /// The decimal digits, in a time that grows with the square of their count.
    pub(super) fn into_decimal(mut self) -> String {
        /// The largest power of ten in a limb, and its zeros.
        const PART: (u64, usize) = (10_000_000_000_000_000_000, 19);
        let mut parts = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u128;
            for limb in self.0.iter_mut().rev() {
                rest = rest << 64 | u128::from(*limb);
                *limb = (rest / u128::from(PART.0)) as u64;
                rest %= u128::from(PART.0);
            }
            parts.push(rest as u64);
            self.trim();
        }
        let mut decimal = parts.pop().unwrap_or(0).to_string();
        for part in parts.iter().rev() {
            decimal.push_str(&format!("{part:0width$}", width = PART.1));
        }
        decimal
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}
