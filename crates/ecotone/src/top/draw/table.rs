//! The table of servers. Where it is too narrow, the columns that matter least are left out.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::figures::{age, or_none, percent, short, whole};
use super::theme::Theme;
use crate::top::model::board::{Board, Row};

/// A forecast beyond it is none.
const FORECAST_MAX_S: f64 = 999.0;

/// The widest that the column of names becomes.
const MAX_NAME_WIDTH: usize = 24;

/// The narrowest.
const MIN_NAME_WIDTH: usize = 8;

/// A column beside that of the names.
struct Column {
    title: &'static str,
    width: usize,
    /// Columns with greater ones are left out first when the terminal is narrow.
    rank: u8,
    is_text: bool,
    show: fn(&Row<'_>) -> String,
}

const COLUMNS: &[Column] = &[
    Column { title: "ops/s", width: 5, rank: 1, is_text: false, show: |row| or_none(row.rates.ops_per_s, short) },
    Column {
        title: "MB/s",
        width: 5,
        rank: 2,
        is_text: false,
        show: |row| or_none(row.rates.write_bytes_per_s, |bytes| short(bytes / 1e6)),
    },
    Column { title: "state", width: 8, rank: 1, is_text: true, show: state },
    Column { title: "stall", width: 5, rank: 10, is_text: false, show: |row| or_none(row.rates.stall_share, percent) },
    Column { title: "L0", width: 4, rank: 2, is_text: false, show: |row| or_none(row.state.l0_tables, whole) },
    Column { title: "WST in", width: 6, rank: 4, is_text: false, show: forecast },
    Column { title: "jobs", width: 5, rank: 3, is_text: false, show: jobs },
    Column { title: "W", width: 5, rank: 3, is_text: false, show: |row| or_none(row.rates.watts, short) },
    Column {
        title: "µJ/op",
        width: 5,
        rank: 4,
        is_text: false,
        show: |row| or_none(row.rates.joules_per_op, |joules| short(joules * 1e6)),
    },
    Column {
        title: "SAR",
        width: 5,
        rank: 5,
        is_text: false,
        show: |row| or_none(row.state.space_amplification(), short),
    },
    Column {
        title: "disk",
        width: 5,
        rank: 5,
        is_text: false,
        show: |row| or_none(row.state.store_bytes, |bytes| short(bytes as f64)),
    },
    Column {
        title: "free",
        width: 5,
        rank: 11,
        is_text: false,
        show: |row| or_none(row.state.free_bytes, |bytes| short(bytes as f64)),
    },
    Column { title: "cores", width: 7, rank: 6, is_text: false, show: cores },
    Column {
        title: "GHz",
        width: 4,
        rank: 9,
        is_text: false,
        show: |row| or_none(row.state.frequency_hz.filter(|hz| *hz > 0.0), |hz| short(hz / 1e9)),
    },
    Column { title: "away", width: 5, rank: 7, is_text: false, show: |row| or_none(row.state.offloaded_total, whole) },
    Column { title: "taken", width: 5, rank: 7, is_text: false, show: |row| or_none(row.state.taken_total, whole) },
    Column { title: "decl.", width: 5, rank: 7, is_text: false, show: |row| or_none(row.state.declined_total, whole) },
    Column {
        title: "back",
        width: 5,
        rank: 7,
        is_text: false,
        show: |row| or_none(row.state.fallen_back_total, whole),
    },
    Column {
        title: "takes jobs",
        width: 15,
        rank: 8,
        is_text: true,
        show: |row| row.state.takes_jobs.clone().unwrap_or_else(|| "-".into()),
    },
    Column { title: "address", width: 21, rank: 12, is_text: true, show: |row| row.state.address.clone() },
];

/// What a column of the table means, for the help.
pub(super) const MEANINGS: &[(&str, &str)] = &[
    ("ops/s, MB/s", "operations, and bytes written by users"),
    ("state", "writes run, are slowed or stopped; gone: no report"),
    ("stall", "share of time in which writes were not just running"),
    ("L0, WST in", "tables of level 0; seconds to the stall threshold"),
    ("jobs 2-1+3", "own compactions, of them away, and others' that run here"),
    ("W, µJ/op", "power; energy per operation (EpO), idle included"),
    ("SAR", "bytes on disk for each byte that lives"),
    ("away taken", "jobs sent to others and done for others, in all"),
    ("decl. back", "jobs refused; jobs that came home, in all"),
];

fn state(row: &Row<'_>) -> String {
    if row.state.is_gone() {
        return format!("gone {}", age(row.state.report_age_ms as f64 / 1e3));
    }
    row.state.writers.clone().unwrap_or_else(|| "-".into())
}

fn forecast(row: &Row<'_>) -> String {
    let forecast = row.state.stall_in_s.filter(|seconds| *seconds <= FORECAST_MAX_S && !row.state.is_gone());
    or_none(forecast, |seconds| format!("{seconds:.0}s"))
}

fn jobs(row: &Row<'_>) -> String {
    let Some(running) = row.state.running_compactions.filter(|_| !row.state.is_gone()) else { return "-".into() };
    let away = row.state.running_offloaded.filter(|away| *away > 0).map(|away| format!("-{}", whole(away)));
    let taken = row.state.running_worker_jobs.filter(|taken| *taken > 0).map(|taken| format!("+{}", whole(taken)));
    format!("{}{}{}", whole(running), away.unwrap_or_default(), taken.unwrap_or_default())
}

fn cores(row: &Row<'_>) -> String {
    let (Some(cores), Some(free)) = (row.state.cores, row.state.free_cores) else { return "-".into() };
    format!("{}/{}", fewer_digits((cores - free).max(0.0)), whole(cores as u64))
}

fn fewer_digits(figure: f64) -> String {
    if figure < 99.95 { format!("{figure:.1}") } else { short(figure) }
}

/// The columns that fit beside a name of `name_width`, in the order of the table.
fn columns(width: usize, name_width: usize) -> Vec<&'static Column> {
    let mut by_rank: Vec<usize> = (0..COLUMNS.len()).collect();
    by_rank.sort_by_key(|index| COLUMNS[*index].rank);
    let mut taken = name_width + 1;
    let mut chosen: Vec<usize> = Vec::new();
    for index in by_rank {
        let more = COLUMNS[index].width + 1;
        if taken + more > width {
            break;
        }
        taken += more;
        chosen.push(index);
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|index| &COLUMNS[index]).collect()
}

/// Draws the title line and as many servers as fit, the selected one among them.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, board: &Board, theme: Theme) {
    let rows = board.rows();
    let longest = rows.iter().map(|row| width_of(&row.state.name)).max().unwrap_or(0);
    let name_width = longest.clamp(MIN_NAME_WIDTH, MAX_NAME_WIDTH);
    let columns = columns(usize::from(area.width), name_width);
    let mut titles = format!(" {}", fitted("server", name_width, true));
    for column in &columns {
        titles.push(' ');
        titles.push_str(&fitted(column.title, column.width, column.is_text));
    }
    let shown = usize::from(area.height).saturating_sub(1);
    let selected = rows.iter().position(|row| row.is_selected).unwrap_or(0);
    let first = (selected + 1).saturating_sub(shown).min(rows.len().saturating_sub(shown));
    let mut lines = vec![Line::styled(fitted(&titles, usize::from(area.width), true), theme.titles())];
    for row in rows.iter().skip(first).take(shown) {
        let mark = if row.is_selected { '>' } else { ' ' };
        let mut spans = vec![Span::raw(format!("{mark}{}", fitted(&row.state.name, name_width, true)))];
        for column in &columns {
            let text = fitted(&(column.show)(row), column.width, column.is_text);
            spans.push(Span::raw(" "));
            spans.push(if column.title == "state" {
                Span::styled(text, theme.state(row.state))
            } else {
                Span::raw(text)
            });
        }
        lines.push(Line::from(spans).style(theme.row(row)));
    }
    frame.render_widget(ratatui::widgets::Paragraph::new(lines), area);
}

/// Exactly `width` columns of a terminal: cut, or with spaces behind (`to_the_left`) or before.
pub(super) fn fitted(text: &str, width: usize, to_the_left: bool) -> String {
    let mut shown = String::new();
    let mut taken = 0;
    for character in text.chars() {
        let more = width_of(character.encode_utf8(&mut [0; 4]));
        if taken + more > width {
            break;
        }
        taken += more;
        shown.push(character);
    }
    let spaces = " ".repeat(width - taken);
    if to_the_left { shown + &spaces } else { spaces + &shown }
}

/// Columns of a terminal that a text takes.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}
