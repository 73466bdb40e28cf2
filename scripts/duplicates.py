#!/usr/bin/env python3
"""duplicates.py RESULTS PLOTS: what `make bench ONLY='duplicates-*'` has measured, as tables, and as plots of space by writes and by threshold.

RESULTS is the folder of the results, $CARGO_TARGET_DIR/bench; PLOTS the folder that gets duplicates-plain.svg and duplicates-separate.svg, and
the same with -thresholds and -costs. Prints tables in Markdown. What was not measured is left out.
"""

import json
import statistics
import sys
from pathlib import Path

LAYOUTS = {"plain": "inline values", "separate": "separated values"}
WAYS = {"sample": "#2166ac", "filter": "#4d9221", "triggered": "#b2182b"}
THRESHOLDS = (2, 4, 5, 6, 7, 8, 10, 20, 30, 50, 70, 100)
# "Deduplication Adapted CaseDB for Edge Computing", Fig. 9, at SAR 1.5: WAR of the extended compaction and of the triggered one.
PAPER = {"paper: extended": (3.9, 1.5), "paper: triggered": (7.7, 1.5)}
# Its Figs. 7 and 8, by what there was without: five times less SAR for a WAR of 4.1, which was 2 to 3; four times less for 1.5 times fewer operations.
PAPER_COSTS = {"paper, Fig. 7": (4.1 / 2.5, 5), "paper, Fig. 8": (1.5, 4)}

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 52, 150, 34, 44


def read(results, name):
    """The object that a run has printed, or None."""
    path = results / f"duplicates-{name}.txt"
    text = path.read_text() if path.exists() else ""
    begin = text.find("\n{")
    return json.JSONDecoder().raw_decode(text, begin + 1)[0] if begin >= 0 else None


def point(run):
    return run["war_steady"], run["sar_mean_steady"]


def ticks(least, most):
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 50, 1000) if (most - least) / step <= 8)
    first = round(least / step)
    return [round(number * step, 2) for number in range(first, round(most / step) + 1)]


def plot(title, series, single, axes=("WAR", "SAR"), marks=None):
    """SVG of `series` (name, colour, [(label, (x, y))]) as lines, and of `single` points (name, (x, y)). `marks`: what stands at each whole x."""
    points = [at for _, _, line in series for _, at in line] + [at for _, at in single]
    (x_least, x_most), (y_least, y_most) = (
        (min(at[axis] for at in points), max(at[axis] for at in points)) for axis in (0, 1))
    x_ticks = list(range(len(marks))) if marks else ticks(x_least * 0.95, x_most * 1.05)
    y_ticks = ticks(min(1.0, y_least), y_most * 1.02)
    x_least, x_most = min(x_ticks[0], x_least), max(x_ticks[-1], x_most)
    y_least, y_most = min(y_ticks[0], y_least), max(y_ticks[-1], y_most)
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    x = lambda value: LEFT + (value - x_least) / (x_most - x_least) * (right - LEFT)
    y = lambda value: floor - (value - y_least) / (y_most - y_least) * (floor - TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<title>{title}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>']
    for tick in y_ticks:
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{right}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        out.append(f'<path d="M{x(tick):.1f} {floor}v4" stroke="#888"/>'
                   f'<text x="{x(tick):.1f}" y="{floor + 18}" text-anchor="middle">{marks[tick] if marks else f"{tick:g}"}</text>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{axes[0]}</text>'
               f'<text x="14" y="{(TOP + floor) / 2}" transform="rotate(-90 14 {(TOP + floor) / 2})" '
               f'text-anchor="middle">{axes[1]}</text>')
    legend = TOP + 10
    for name, colour, line in series:
        path = " ".join(f"{x(at[0]):.1f},{y(at[1]):.1f}" for _, at in line)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}"/>')
        for label, at in line:
            out.append(f'<circle cx="{x(at[0]):.1f}" cy="{y(at[1]):.1f}" r="3" fill="{colour}"/>'
                       f'<text x="{x(at[0]) + 4:.1f}" y="{y(at[1]) - 5:.1f}" font-size="10" fill="{colour}">{label}</text>')
        out.append(f'<path d="M{right + 12} {legend}h18" stroke="{colour}" stroke-width="3"/>'
                   f'<text x="{right + 34}" y="{legend + 4}">{name}</text>')
        legend += 20
    for name, at in single:
        out.append(f'<path d="M{x(at[0]) - 4:.1f} {y(at[1]) - 4:.1f}l8 8m0 -8l-8 8" stroke="#333" stroke-width="1.6"/>'
                   f'<text x="{x(at[0]) + 7:.1f}" y="{y(at[1]) + 4:.1f}" font-size="10">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def steady(results, plots, layout, words):
    off = read(results, f"{layout}-off")
    if off is None or None in point(off):
        return
    series, rows = [], []
    rows.append(("`off`", "–", *cells(off)))
    for way, colour in WAYS.items():
        line = []
        for threshold in THRESHOLDS:
            run = read(results, f"{layout}-{way}-{threshold}")
            if run is not None and None not in point(run):
                line.append((str(threshold), point(run)))
                rows.append((f"`{way}`", threshold, *cells(run)))
        if line:
            series.append((way, colour, line))
    single = [("off", point(off))] + (list(PAPER.items()) if layout == "separate" else [])
    plots.mkdir(parents=True, exist_ok=True)
    (plots / f"duplicates-{layout}.svg").write_text(plot(f"Space by writes, {words}; thresholds at the points", series, single))
    print(f"### {words}\n")
    table(("`--dedup`", "threshold", "SAR, mean of the second half", "highest SAR", "WAR of the second half", "CPU µs/op",
           "counting, share of compaction CPU", "merges, share of it", "hidden at the end: estimated / counted, MB", "slowed, s",
           "p99 of a put, ms"), rows)


def by_threshold(results, plots, layout, words):
    """What a threshold changes, by what there is without one: as the paper's Figs. 7 and 8."""
    off, flat = read(results, f"{layout}-off"), flat_out_runs(results, layout)
    if off is None or None in point(off):
        return
    runs = {threshold: read(results, f"{layout}-sample-{threshold}") for threshold in THRESHOLDS}
    runs = {threshold: run for threshold, run in runs.items() if run is not None and None not in point(run)}
    if not runs:
        return
    at = {threshold: place for place, threshold in enumerate(runs)}
    (war, sar) = point(off)
    line = lambda value: [("", (at[threshold], value(run))) for threshold, run in runs.items()]
    series = [("SAR, times less", "#2166ac", line(lambda run: sar / point(run)[1])),
              ("WAR, times more", "#b2182b", line(lambda run: point(run)[0] / war))]
    slower = [("", (at[threshold], flat["off"][0] / ops)) for threshold, (ops, _) in flat.items() if threshold in at]
    if slower:
        series.append(("op/s, times fewer", "#4d9221", slower))
    plots.mkdir(parents=True, exist_ok=True)
    drawn = plot(f"What a threshold changes, {words}", series, [], ("threshold", "by off"), list(at))
    (plots / f"duplicates-{layout}-thresholds.svg").write_text(drawn)


def costs(results, plots, layout, words):
    """How many times less space there is, by how many times more is written for it, and how many times fewer operations there are."""
    off, flat = read(results, f"{layout}-off"), flat_out_runs(results, layout)
    if off is None or None in point(off):
        return
    war, sar = point(off)
    runs = [(threshold, read(results, f"{layout}-sample-{threshold}")) for threshold in THRESHOLDS]
    written = [(str(threshold), (point(run)[0] / war, sar / point(run)[1]))
               for threshold, run in runs if run is not None and None not in point(run)]
    slower = [(str(threshold), (flat["off"][0] / ops, flat["off"][1] / space)) for threshold, (ops, space) in flat.items()
              if threshold != "off"]
    series = [series for series in (("WAR, times more", "#b2182b", written), ("op/s, times fewer", "#4d9221", slower)) if series[2]]
    if not series:
        return
    single = [("off", (1.0, 1.0))] + (list(PAPER_COSTS.items()) if layout == "separate" else [])
    drawn = plot(f"What less space costs, {words}; thresholds at the points", series, single, ("times more written, or slower", "SAR, times less"))
    (plots / f"duplicates-{layout}-costs.svg").write_text(drawn)


def cells(run):
    def cell(key, digits, factor=1.0, unit=""):
        return "–" if run.get(key) is None else f"{run[key] * factor:.{digits}f}{unit}"

    return (cell("sar_mean_steady", 2), cell("sar_max", 2), cell("war_steady", 2), cell("cpu_us_per_op", 1),
            cell("dedup_cpu_share", 1, 100, " %"), cell("dedup_merge_cpu_share", 1, 100, " %"),
            f"{cell('shadowed_bytes_estimated', 1, 1e-6)} / {cell('shadowed_bytes_true', 1, 1e-6)}", cell("throttled_ms", 1, 1e-3),
            f"{run['latency_us']['put']['p99'] / 1000:.1f}")


def counting(results, layout, words):
    rounds = [(read(results, f"{layout}-without-{number}"), read(results, f"{layout}-counting-{number}")) for number in (1, 2, 3)]
    rounds = [pair for pair in rounds if None not in pair]
    if rounds:
        ratios = sorted(with_["cpu_us_per_op"] / without["cpu_us_per_op"] for without, with_ in rounds)
        print(f"{words}: CPU per operation with counting by that without, of {len(ratios)} rounds: median "
              f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})\n")


def shares(results, layout, words):
    rows = []
    for share in (5, 20, 50, 100):
        run = read(results, f"{layout}-share-{share}" if share < 100 else f"{layout}-counting-1")
        if run is not None and run.get("dup_ratio_estimated") and run.get("dup_ratio_true"):
            estimated, counted = run["shadowed_bytes_estimated"], run["shadowed_bytes_true"]
            rows.append((share, f"{estimated / 1e6:.2f}", f"{counted / 1e6:.2f}", f"{estimated / counted:.3f}" if counted else "–",
                         f"{run['dup_ratio_estimated']:.1f}", f"{run['dup_ratio_true']:.1f}"))
    if rows:
        print(f"{words}:\n")
        table(("updates, %", "hidden, estimated, MB", "counted", "ratio", "DUP_RATIO, estimated", "counted"), rows)


def flat_out_runs(results, layout):
    """Medians of operations per second and SAR, by threshold; nothing without those of `off`."""
    medians = {}
    for threshold in ("off", *THRESHOLDS):
        runs = [run for number in (1, 2, 3) if (run := read(results, f"{layout}-flat-out-{threshold}-{number}"))]
        if runs:
            medians[threshold] = tuple(statistics.median(run[key] for run in runs) for key in ("ops_per_s", "sar_mean_steady"))
    return medians if "off" in medians else {}


def flat_out(results, layout, words):
    medians = flat_out_runs(results, layout)
    rows = [(threshold, f"{ops:,.0f}", f"{ops / medians['off'][0]:.2f}", f"{sar:.2f}", f"{medians['off'][1] / sar:.2f}",
             f"{medians['off'][0] / ops:.2f}") for threshold, (ops, sar) in medians.items()]
    if rows:
        print(f"{words}, flat out:\n")
        table(("threshold", "op/s", "by off", "SAR", "reduce factor of SAR", "of throughput"), rows)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results, plots = Path(sys.argv[1]), Path(sys.argv[2])
    for layout, words in LAYOUTS.items():
        steady(results, plots, layout, words)
        by_threshold(results, plots, layout, words)
        costs(results, plots, layout, words)
        counting(results, layout, words)
        shares(results, layout, words)
        flat_out(results, layout, words)


main()
