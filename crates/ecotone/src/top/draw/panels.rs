//! The panels below the table: a history of the selected server, and energy, jobs and value log of
//! the one that is asked.

use std::collections::{BTreeMap, VecDeque};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, RenderDirection, Sparkline};

use super::figures::{or_none, percent, short, whole};
use super::table::fitted;
use super::theme::Theme;
use crate::top::model::board::Board;
use crate::top::model::snapshot::Snapshot;

/// The width of the label before a sparkline.
const LABEL_WIDTH: u16 = 14;

/// The highest bar of a sparkline, in its steps: figures are scaled to it, so that small ones are
/// visible.
const STEPS: f64 = 1000.0;

/// Shown where nothing is known; nothing at all is shown for none.
const GAP: &str = "·";

type Panel = fn(&mut Frame<'_>, Rect, &Board, &Snapshot, Theme);

fn block(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

/// The last minutes of the selected server.
pub(super) fn history(frame: &mut Frame<'_>, area: Rect, board: &Board, theme: Theme) {
    let name = board.selected_name().unwrap_or_default();
    let block = block(format!(" {name}, one figure every {} s ", board.period_s()));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let Some(track) = board.track(name) else { return };
    let lines = [
        ("ops/s", or_none(track.rates.ops_per_s, short), &track.ops_per_s, None),
        ("stall", or_none(track.rates.stall_share, percent), &track.stall_share, Some(1.0)),
        ("watts", or_none(track.rates.watts, short), &track.watts, None),
    ];
    let areas = Layout::vertical([Constraint::Fill(1); 3]).split(inside);
    for ((label, now, history, full), area) in lines.into_iter().zip(areas.iter()) {
        let [before, spark] = Layout::horizontal([Constraint::Length(LABEL_WIDTH), Constraint::Fill(1)]).areas(*area);
        frame.render_widget(Line::from(format!(" {} {}", fitted(label, 6, true), fitted(&now, 5, false))), before);
        let bars = scaled(history, full, usize::from(spark.width));
        let sparkline = Sparkline::default().data(bars).max(STEPS as u64).direction(RenderDirection::RightToLeft);
        let sparkline = sparkline.absent_value_symbol(GAP).absent_value_style(theme.quiet());
        frame.render_widget(sparkline.style(theme.bar()), spark);
    }
}

/// The newest figures first, in steps of the greatest of them, or of `full`.
fn scaled(history: &VecDeque<Option<f64>>, full: Option<f64>, most: usize) -> Vec<Option<u64>> {
    let newest = history.iter().rev().take(most);
    let greatest = full.unwrap_or_else(|| newest.clone().flatten().copied().fold(0.0, f64::max));
    let steps = |figure: f64| if greatest > 0.0 { (figure / greatest * STEPS).ceil() as u64 } else { 0 };
    newest.map(|figure| figure.map(steps)).collect()
}

/// Energy, jobs and value log side by side, as many as fit.
pub(super) fn details(frame: &mut Frame<'_>, area: Rect, board: &Board, theme: Theme) {
    let Some(snapshot) = &board.snapshot else { return };
    let widths = match area.width {
        0..50 => vec![Constraint::Fill(1)],
        50..76 => vec![Constraint::Fill(1), Constraint::Length(24)],
        _ => vec![Constraint::Fill(5), Constraint::Fill(4), Constraint::Fill(4)],
    };
    let areas = Layout::horizontal(widths).spacing(1).split(area);
    let panels: [Panel; 3] = [energy, jobs, values];
    for (draw, area) in panels.into_iter().zip(areas.iter()) {
        draw(frame, *area, board, snapshot, theme);
    }
}

/// Watts by duty, the greatest first; joules where there is no second figure yet.
fn energy(frame: &mut Frame<'_>, area: Rect, board: &Board, snapshot: &Snapshot, theme: Theme) {
    let (figures, unit) = match &board.own.watts_by_duty {
        watts if watts.is_empty() => (&snapshot.joules_by_duty, "J"),
        watts => (watts, "W"),
    };
    let power = power_of(snapshot);
    let block = block(format!(" energy of {}, {unit} ({}{power}) ", snapshot.name, snapshot.energy_source));
    let inside = block.inner(area);
    let mut duties: Vec<(&String, f64)> = figures.iter().map(|(duty, figure)| (duty, *figure)).collect();
    duties.retain(|(duty, figure)| {
        *figure > 0.0 || snapshot.joules_by_duty.get(*duty).is_some_and(|joules| *joules > 0.0)
    });
    duties.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(other.0)));
    let greatest = duties.first().map_or(0.0, |(_, figure)| *figure);
    let columns = usize::from(inside.width).saturating_sub(12 + 1 + 5 + 2);
    let lines = duties.into_iter().take(usize::from(inside.height)).map(|(duty, figure)| {
        let words = format!(" {} {} ", fitted(duty, 12, true), fitted(&short(figure), 5, false));
        Line::from(vec![Span::raw(words), Span::styled(bar(figure, greatest, columns), theme.bar())])
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

/// The mode and the cap, where there is something to say of them.
fn power_of(snapshot: &Snapshot) -> String {
    let mode = snapshot.power_mode.as_deref().filter(|mode| *mode != "all-high");
    let mut said = mode.map_or_else(String::new, |mode| format!(", {mode}"));
    if let Some((watts, kept)) = snapshot.power_cap {
        let not = if kept == Some(false) { " not kept" } else { "" };
        said += &format!(", cap {} W{not}", short(watts));
    }
    said
}

/// A bar of eighths.
fn bar(figure: f64, greatest: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if greatest <= 0.0 || figure <= 0.0 {
        return String::new();
    }
    let eighths = ((figure / greatest).clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Declines and fallbacks by their reasons, since the start.
fn jobs(frame: &mut Frame<'_>, area: Rect, _: &Board, snapshot: &Snapshot, theme: Theme) {
    let block = block(format!(" jobs of {} ", snapshot.name));
    let width = usize::from(block.inner(area).width);
    let own = snapshot.servers.iter().find(|server| server.is_self);
    let mut lines = vec![
        figure("sent away", &or_none(own.and_then(|own| own.offloaded_total), whole), width),
        figure("done for others", &or_none(own.and_then(|own| own.taken_total), whole), width),
    ];
    for (title, reasons) in [("declined", &snapshot.declined), ("came home", &snapshot.fallen_back)] {
        lines.extend(by_reason(title, reasons, width, theme));
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn by_reason(title: &str, reasons: &BTreeMap<String, u64>, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let total = reasons.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let mut reasons: Vec<_> = reasons.iter().filter(|(_, count)| **count > 0).collect();
    reasons.sort_by(|one, other| other.1.cmp(one.1).then_with(|| one.0.cmp(other.0)));
    let mut lines = vec![figure(title, &whole(total), width)];
    lines.extend(
        reasons
            .into_iter()
            .map(|(reason, count)| figure(&format!("  {reason}"), &whole(*count), width).style(theme.quiet())),
    );
    lines
}

/// The value log, shadowed versions, and whether writes are refused.
fn values(frame: &mut Frame<'_>, area: Rect, board: &Board, snapshot: &Snapshot, theme: Theme) {
    let block = block(format!(" value log of {} ", snapshot.name));
    let width = usize::from(block.inner(area).width);
    let mut lines = Vec::new();
    match &snapshot.values {
        None => lines.push(Line::from(" none: values lie with keys")),
        Some(values) => {
            let bytes = |bytes: u64| short(bytes as f64);
            let referenced = (values.bytes > 0).then(|| values.referenced_bytes as f64 / values.bytes as f64);
            lines.extend([
                figure("segments", &whole(values.segments), width),
                figure("bytes", &bytes(values.bytes), width),
                figure("referenced", &or_none(referenced, |referenced| percent(referenced.min(1.0))), width),
                figure("GC segments", &whole(values.gc_segments), width),
                figure("GC B/s", &or_none(board.own.gc_bytes_per_s, short), width),
                figure("removed B/s", &or_none(board.own.removed_bytes_per_s, short), width),
                figure("writers throttled", &or_none(board.own.throttled_share, percent), width),
            ]);
        }
    }
    if let Some(of) = &snapshot.duplicates {
        lines.extend([
            figure("shadowed bytes", &short(of.shadowed_bytes as f64), width),
            figure("dup ratio", &or_none(of.dup_ratio, |ratio| format!("{ratio:.1}")), width),
        ]);
        let levels = of.by_level.iter().filter(|(_, bytes)| **bytes > 0);
        lines.extend(
            levels.map(|(level, bytes)| figure(&format!("shadowed in L{level}"), &short(*bytes as f64), width)),
        );
    }
    if snapshot.writes_refused == Some(true) {
        lines.insert(0, Line::styled(" no space: writes refused", theme.alarm()));
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn figure(name: &str, figure: &str, width: usize) -> Line<'static> {
    let columns = width.saturating_sub(figure.len() + 2).min(26);
    Line::from(format!(" {} {figure}", fitted(name, columns, true)))
}
