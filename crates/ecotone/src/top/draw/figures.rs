//! Figures in as few characters as a table has.

/// Three digits and what they are thousands of: `12.3k`. At most 5 characters, whatever the figure.
pub(super) fn short(figure: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    if !figure.is_finite() {
        return "-".into();
    }
    let (mut rest, mut unit) = (figure.max(0.0), 0);
    // What would be shown as 1000 is one of the next.
    while rest >= 999.5 && unit + 1 < UNITS.len() {
        rest /= 1000.0;
        unit += 1;
    }
    match rest {
        0.0 => "0".into(),
        _ if rest >= 999.5 => ">1e21".into(),
        _ if unit == 0 && rest < 0.005 => "<.01".into(),
        _ if unit == 0 && rest.fract() == 0.0 => format!("{rest:.0}"),
        _ if rest < 9.995 => format!("{rest:.2}{}", UNITS[unit]),
        _ if rest < 99.95 => format!("{rest:.1}{}", UNITS[unit]),
        _ => format!("{rest:.0}{}", UNITS[unit]),
    }
}

/// A count: like [`short`], without a fraction where it needs none.
pub(super) fn whole(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { short(count as f64) }
}

/// A figure that may be missing.
pub(super) fn or_none<T>(figure: Option<T>, shown: impl Fn(T) -> String) -> String {
    figure.map_or_else(|| "-".into(), shown)
}

/// A share as a percentage, at most 4 characters.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", (share * 100.0).clamp(0.0, 999.0)) } else { "-".into() }
}

/// A time in its greatest unit, rounded down: at most 4 characters up to 999 days.
pub(super) fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..120 => format!("{whole}s"),
        120..7_200 => format!("{}m", whole / 60),
        7_200..172_800 => format!("{}h", whole / 3_600),
        _ => format!("{}d", (whole / 86_400).min(999)),
    }
}

/// `2d 03:04:05`.
pub(super) fn uptime(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}d {clock}") } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_figure_takes_more_room_than_there_is() {
        for (figure, shown) in [
            (0.0, "0"),
            (0.001, "<.01"),
            (0.0349, "0.03"),
            (1.0, "1"),
            (9.996, "10.0"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (u64::MAX as f64, "18.4E"),
            (f64::MAX, ">1e21"),
            (f64::NAN, "-"),
            (-1.0, "0"),
        ] {
            assert_eq!(short(figure), shown, "{figure}");
        }
        let mut figure = 1e-5;
        while figure < 1e30 {
            assert!(short(figure).len() <= 5, "{figure}: {}", short(figure));
            figure *= 1.01;
        }
        assert_eq!((whole(9_999), whole(10_000), whole(u64::MAX)), ("9999".into(), "10.0k".into(), "18.4E".into()));
        assert_eq!((percent(0.254), percent(f64::MAX), percent(f64::NAN)), ("25%".into(), "999%".into(), "-".into()));
    }

    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!([0.0, 119.9, 120.0, 7_200.0, 1e30].map(age), ["0s", "119s", "2m", "2h", "999d"]);
        assert_eq!((uptime(59), uptime(93_784)), ("00:00:59".into(), "1d 02:03:04".into()));
    }
}
