//! What a command prints on standard output when it has done its work, and the date on its pages.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// One more line of a `String`.
macro_rules! line {
    ($text:expr, $($what:tt)*) => {{
        $text.push_str(&format!($($what)*));
        $text.push('\n');
    }};
}
pub(crate) use line;

/// Prints `text` and, where it has none, the end of the line.
///
/// # Errors
///
/// It cannot be written, but for a reader that wants no more: that is its own affair.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot print what was found"),
    }
}

/// The date, by the civil calendar (days since 1970-01-01; algorithm after Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms", section civil_from_days).
pub(crate) fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let days = (since.as_secs() / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn today_is_a_date_of_this_century() {
        let today = today();
        assert_eq!(today.len(), 10, "{today}");
        assert!(today.as_str() > "2026-01-01" && today.as_str() < "2100-01-01", "{today}");
    }
}
