//! Validity and X.509 version of a certificate, and warnings before it expires.
//!
//! The library that checks certificates exposes neither. What is read here is the beginning of a
//! certificate: a few fields of DER (X.690) in a fixed order (RFC 5280, section 4.1). Whether the
//! certificate can be used is left to the library.
//!
//! Failure: what is no certificate, or has an impossible date, has no [`Certificate`], and no
//! warnings.

use std::sync::atomic::{AtomicI64, Ordering};

/// Tags of DER.
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A day, in seconds.
pub(super) const DAY_S: i64 = 24 * 60 * 60;

/// A certificate is warned of from so many days before its expiry on, once a day.
const WARNED_BEFORE_DAYS: i64 = 30;

/// What is read of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    /// The version of X.509: 1 to 3.
    pub(super) version: u8,
    /// When it becomes valid.
    pub(super) begin: Moment,
    /// When it expires.
    pub(super) end: Moment,
}

/// A second.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Since 1970 UTC.
    pub(super) unix_s: i64,
    /// For people.
    pub(super) text: String,
}

/// When the certificates in use expire, as seconds since 1970 UTC: for monitoring.
#[derive(Debug, Default)]
pub struct CertificateEnds {
    /// 0 where there is none.
    certificate_s: AtomicI64,
    client_ca_s: AtomicI64,
}

impl CertificateEnds {
    /// The first expiry of the server's own and those between it and its authority.
    pub fn certificate_s(&self) -> Option<i64> {
        Some(self.certificate_s.load(Ordering::Relaxed)).filter(|end| *end != 0)
    }

    /// The first expiry of the authorities of clients.
    pub fn client_ca_s(&self) -> Option<i64> {
        Some(self.client_ca_s.load(Ordering::Relaxed)).filter(|end| *end != 0)
    }

    pub(super) fn set(&self, certificate: Option<&Moment>, client_ca: Option<&Moment>) {
        let of = |end: Option<&Moment>| end.map_or(0, |end| end.unix_s);
        self.certificate_s.store(of(certificate), Ordering::Relaxed);
        self.client_ca_s.store(of(client_ca), Ordering::Relaxed);
    }
}

/// Reads the certificate in `der`.
pub(super) fn read(der: &[u8]) -> Option<Certificate> {
    let (certificate, _) = expect(SEQUENCE, der)?;
    let (mut fields, _) = expect(SEQUENCE, certificate)?;
    let mut version = 1;
    if let Some((inside, rest)) = expect(VERSION, fields) {
        let (number, _) = expect(INTEGER, inside)?;
        version = number.first()?.checked_add(1)?;
        fields = rest;
    }
    // Serial number, algorithm of the signature, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = expect(tag, fields)?;
    }
    let (validity, _) = expect(SEQUENCE, fields)?;
    let (begin, rest) = moment(validity)?;
    let (end, _) = moment(rest)?;
    Some(Certificate { version, begin, end })
}

/// The content of the value that `bytes` begin with, if it has this tag, and what comes behind it.
fn expect(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = value(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Tag and content of the value that `bytes` begin with, and what comes behind it.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, length, rest @ ..] = bytes else { return None };
    let (length, rest) = match usize::from(*length) {
        short @ ..=0x7f => (short, rest),
        // The number of bytes that the length has. No certificate needs more.
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(long - 0x80)?;
            (length.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// The time that `bytes` begin with: `YYMMDDHHMMSSZ`, or with a year of four digits.
fn moment(bytes: &[u8]) -> Option<(Moment, &[u8])> {
    let (tag, text, rest) = value(bytes)?;
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let pairs: Vec<i64> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |all, digit| 10 * all + i64::from(digit - b'0'))).collect();
    let (year, [month, day, hour, minute, second]) = match (tag, pairs.as_slice()) {
        (UTC_TIME, [year, rest @ ..]) => {
            // RFC 5280, section 4.1.2.5.1.
            let century = if *year < 50 { 2000 } else { 1900 };
            (century + year, <[i64; 5]>::try_from(rest).ok()?)
        }
        (GENERALIZED_TIME, [century, year, rest @ ..]) => (100 * century + year, <[i64; 5]>::try_from(rest).ok()?),
        _ => return None,
    };
    let is_time = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    if digits.len() % 2 != 0 || !is_time {
        return None;
    }
    let unix_s = days_since_1970(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second;
    let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC");
    Some((Moment { unix_s, text }, rest))
}

/// Of a day of the Gregorian calendar: years begin in March, so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_of_years = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_of_months = (153 * month + 2) / 5;
    days_of_years + days_of_months + day - 1 - 719_468
}

/// A warning about a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// It is not valid yet.
    NotYet,
    /// It expires in so many days, rounded down.
    Ends { in_days: i64 },
    /// It has expired.
    Ended,
}

/// The last warning, and when it was given.
#[derive(Debug, Default)]
pub(super) struct Notices {
    last: Option<(Notice, i64)>,
}

impl Notices {
    /// The warning that is due about `certificate` at `now_s`: at once where it differs from the
    /// last one, else once a day.
    pub(super) fn due(&mut self, certificate: &Certificate, now_s: i64) -> Option<Notice> {
        let left_s = certificate.end.unix_s - now_s;
        let notice = if now_s < certificate.begin.unix_s {
            Notice::NotYet
        } else if left_s < 0 {
            Notice::Ended
        } else if left_s <= WARNED_BEFORE_DAYS * DAY_S {
            Notice::Ends { in_days: left_s / DAY_S }
        } else {
            self.last = None;
            return None;
        };
        let is_told = self.last.is_some_and(|(last, at_s)| {
            std::mem::discriminant(&last) == std::mem::discriminant(&notice) && (at_s..at_s + DAY_S).contains(&now_s)
        });
        if is_told {
            return None;
        }
        self.last = Some((notice, now_s));
        Some(notice)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use rustls::pki_types::CertificateDer;

    use super::*;

    fn certificate(begin: (i32, u8, u8), end: (i32, u8, u8)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let date = |(year, month, day)| date_time_ymd(year, month, day);
        (params.not_before, params.not_after) = (date(begin), date(end));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_is_read_as_it_was_made() {
        for (begin, end, begin_s, end_s, text) in [
            ((1970, 1, 1), (2026, 2, 28), 0, 1_772_236_800, "2026-02-28 00:00:00 UTC"),
            ((1950, 1, 1), (2049, 12, 31), -631_152_000, 2_524_521_600, "2049-12-31 00:00:00 UTC"),
            // From this year on years have four digits.
            ((2000, 2, 29), (2050, 1, 1), 951_782_400, 2_524_608_000, "2050-01-01 00:00:00 UTC"),
            ((2024, 2, 29), (9999, 12, 31), 1_709_164_800, 253_402_214_400, "9999-12-31 00:00:00 UTC"),
        ] {
            let read = read(&certificate(begin, end)).unwrap();
            assert_eq!((read.version, read.begin.unix_s, read.end.unix_s), (3, begin_s, end_s));
            assert_eq!(read.end.text, text);
        }
    }

    #[test]
    fn what_is_no_certificate_is_none_and_nothing_is_read_beyond_its_end() {
        let whole = certificate((2020, 1, 1), (2030, 1, 1));
        for length in 0..whole.len() {
            // The dates are near the beginning, but the total length is at the very beginning.
            assert_eq!(read(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] ^= change;
                // Any result will do.
                let _ = read(&damaged);
            }
        }
        let time = |tag: u8, text: &[u8]| {
            moment(&[&[tag, text.len() as u8][..], text].concat()).map(|(moment, _)| moment.unix_s)
        };
        assert_eq!(time(UTC_TIME, b"700101000001Z"), Some(1));
        assert_eq!(time(GENERALIZED_TIME, b"19700101000001Z"), Some(1));
        for wrong in [
            &b"7001010000Z"[..],
            b"700101000001",
            b"700101000001+0100",
            b"701301000001Z",
            b"7001010000011Z",
            b"70010100000\xb0Z",
            b"Z",
            b"",
        ] {
            assert_eq!(time(UTC_TIME, wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn the_end_is_told_at_once_and_then_once_a_day() {
        let day = |number: i64| number * DAY_S;
        let moment = |unix_s| Moment { unix_s, text: String::new() };
        let certificate = Certificate { version: 3, begin: moment(day(100)), end: moment(day(200)) };
        let mut notices = Notices::default();
        let mut due = |now_s| notices.due(&certificate, now_s);
        assert_eq!(due(day(99)), Some(Notice::NotYet));
        assert_eq!((due(day(100)), due(day(170) - 1)), (None, None));
        assert_eq!(due(day(170)), Some(Notice::Ends { in_days: 30 }));
        assert_eq!((due(day(170) + 1), due(day(171) - 1)), (None, None));
        assert_eq!(due(day(171)), Some(Notice::Ends { in_days: 29 }));
        assert_eq!(due(day(199) + 7), Some(Notice::Ends { in_days: 0 }));
        // Within a day, since it is another warning.
        assert_eq!((due(day(200)), due(day(200) + 1), due(day(200) + 2)), (None, Some(Notice::Ended), None));
        assert_eq!(due(day(201) + 1), Some(Notice::Ended));
        // A clock that is set back does not silence warnings for long.
        assert_eq!(due(day(180)), Some(Notice::Ends { in_days: 20 }));
        assert_eq!(due(day(175)), Some(Notice::Ends { in_days: 25 }));
    }
}
