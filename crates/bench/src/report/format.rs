//! Numbers as a reader wants them, and text that is safe in HTML and SVG.

/// `1234567.8` as `1,234,568`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}

/// A quotient to a baseline as a change: `1.189` as `+18.9 %`, `none` as `-`.
pub fn change(quotient: Option<f64>) -> String {
    match quotient {
        None => "-".to_owned(),
        Some(quotient) => {
            let percent = (quotient - 1.0) * 100.0;
            // No `-0.0 %`.
            let percent = if percent.abs() < 0.05 { 0.0 } else { percent };
            if percent.abs() >= 1000.0 { format!("x {quotient:.1}") } else { format!("{percent:+.1} %") }
        }
    }
}

/// The change of a stall time, which is often zero for the baseline: a stall that the baseline did
/// not have is `more than none`.
pub fn stall_change(stall_ms: f64, quotient: Option<f64>) -> String {
    if quotient.is_none() && stall_ms > 0.0 { "more than none".to_owned() } else { change(quotient) }
}

/// A quantity with the source of its joules: `µJ/op (model)`.
pub fn of_source(quantity: &str, source: &str) -> String {
    if source.is_empty() { quantity.to_owned() } else { format!("{quantity} ({source})") }
}

/// A relative error: `0.039` as `3.9 %`.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// Milliseconds as seconds: `46120` as `46.1`.
pub fn seconds(milliseconds: f64) -> String {
    format!("{:.1}", milliseconds / 1e3)
}

/// Microjoules: `664.7` as `665`, small ones with a digit more.
pub fn microjoules(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| if value < 10.0 { format!("{value:.2}") } else { grouped(value) })
}

/// Bytes with a binary unit: `4194304` as `4.0 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number for an axis: no more digits than it needs.
pub fn tick(value: f64) -> String {
    if value.abs() < 1e-9 {
        "0".to_owned()
    } else if value.abs() >= 1e6 {
        format!("{}M", trimmed(value / 1e6))
    } else if value.abs() >= 1e4 {
        format!("{}k", trimmed(value / 1e3))
    } else {
        trimmed(value)
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The text with the five characters that mean something in HTML replaced.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in
            [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.8, "1,234,568"), (-1234.0, "-1,234"), (-0.2, "0")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_quotient_reads_as_a_change() {
        for (quotient, text) in [
            (Some(1.189), "+18.9 %"),
            (Some(0.15), "-85.0 %"),
            (Some(0.9999), "+0.0 %"),
            (Some(1.0), "+0.0 %"),
            (Some(0.0), "-100.0 %"),
            (Some(25.0), "x 25.0"),
            (None, "-"),
        ] {
            assert_eq!(change(quotient), text);
        }
    }

    #[test]
    fn axis_numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (0.25, "0.25"), (20.0, "20"), (2500.0, "2500"), (15_000.0, "15k"), (2_500_000.0, "2.5M")]
        {
            assert_eq!(tick(value), text);
        }
    }

    #[test]
    fn bytes_have_binary_units() {
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 20, "4.0 MiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }
}
