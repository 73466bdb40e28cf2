#!/usr/bin/env python3
"""updates.py OUT.svg TITLE NAME=RUN...: draws the space amplification of runs of `ecotone bench updates --json` over time, one below another
in the legend. RUN is a file of such JSON, or what `make bench ONLY='updates-*'` keeps. docs/performance.md shows what it makes."""

import json
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FLOOR = 720, 260, 52, 570, 34, 224
COLOURS = ("#c0392b", "#2c3e50", "#2980b9", "#16a085", "#8e44ad")


def plot(title, runs):
    max_seconds = max(sample["seconds"] for _, samples in runs for sample in samples)
    most_sar = max(sample["sar"] for _, samples in runs for sample in samples)
    top = int(most_sar) + 1

    def x(seconds):
        return LEFT + (RIGHT - LEFT) * seconds / max_seconds

    def y(sar):
        return FLOOR - (FLOOR - TOP) * sar / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<title>{title}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
    ]
    for tick in range(top + 1):
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    step = next(step for step in (10, 20, 60, 120, 300, 600) if max_seconds / step <= 10 or step == 600)
    for tick in range(0, int(max_seconds) + 1, step):
        out.append(f'<path d="M{x(tick):.1f} {FLOOR}v4" stroke="#888"/>'
                   f'<text x="{x(tick):.1f}" y="{FLOOR + 18}" text-anchor="middle">{tick} s</text>')
    for at, ((name, samples), colour) in enumerate(zip(runs, COLOURS)):
        points = " ".join(f"{x(sample['seconds']):.1f},{y(sample['sar']):.1f}" for sample in samples)
        legend = TOP + 10 + 20 * at
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.4" points="{points}"/>'
                   f'<path d="M{RIGHT + 12} {legend}h18" stroke="{colour}" stroke-width="3"/>'
                   f'<text x="{RIGHT + 34}" y="{legend + 4}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) < 4 or not all("=" in run for run in sys.argv[3:]):
        sys.exit(__doc__)
    runs = []
    for run in sys.argv[3:3 + len(COLOURS)]:
        name, path = run.split("=", 1)
        text = "\n" + pathlib.Path(path).read_text()
        samples = json.JSONDecoder().raw_decode(text, text.index("\n{") + 1)[0]["samples"]
        runs.append((name, [sample for sample in samples if sample.get("sar") is not None]))
    pathlib.Path(sys.argv[1]).write_text(plot(sys.argv[2], runs))


main()
