#!/usr/bin/env python3
"""compared.py RESULTS PATTERN [OUT.svg]: tables of those comparisons that `make bench` has measured and whose name is like PATTERN, as 'separated-*'.

RESULTS is the folder of the results, $CARGO_TARGET_DIR/bench. Prints Markdown: medians of the ratios within a round, our store by the other,
with their range, and medians of each store's own figures, but the sum of its stalls; then latencies. OUT.svg becomes a plot of the ratios.
docs/performance.md shows what it makes.
"""

import json
import math
import statistics
import sys
from pathlib import Path

COMPARED = ("measurement", "values", "op/s", "op/s, ratio (rounds)", "CPU µs/op, ratio (rounds)", "stalled s", "WAR", "SAR at the end", "SAR settled",
            "WAR, second half", "SAR, second half")
LATENCIES = ("measurement", "operation", "p50", "p99", "p99.9", "max")


def read(path):
    """The object that a comparison has printed, or None."""
    text = path.read_text()
    begin = text.find("\n{")
    try:
        found = json.JSONDecoder().raw_decode(text, begin + 1)[0] if begin >= 0 else {}
    except json.JSONDecodeError:
        return None
    return found if "rounds" in found else None


def mark_of(comparison):
    return next(target for target in comparison["rounds"][0] if target.startswith("rocksdb"))


def pairs_of(comparison, figure):
    """What our store and the other had in each round in which both had it."""
    mark = mark_of(comparison)
    pairs = [(one["engine"].get(figure), one[mark].get(figure)) for one in comparison["rounds"]]
    return [pair for pair in pairs if None not in pair]


def ratios_of(comparison, figure):
    return [ours / theirs for ours, theirs in pairs_of(comparison, figure) if ours and theirs]


def compared(name, comparison):
    def both(figure):
        return pairs_of(comparison, figure)

    def ratio(figure):
        ratios = ratios_of(comparison, figure)
        if not ratios:
            return "–"
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    def each(figure, by=1, join=statistics.median):
        pairs = both(figure)
        return " / ".join(f"{join(side) / by:.2f}" for side in zip(*pairs)) if pairs else "–"

    operations = statistics.median(ours for ours, _ in both("ops_per_s"))
    # Runs of before this was asked had random ones.
    values = comparison["rounds"][0]["engine"]["options"]["workload"].get("values", "random")
    return (name, values, f"{operations:,.0f}", ratio("ops_per_s"), ratio("cpu_us_per_op"), each("stall_ms", 1000, sum), each("war"),
            each("sar_at_end"), each("sar"), each("war_steady"), each("sar_mean_steady"))


def latencies(name, comparison):
    """A row for each operation: microseconds of our store and of the other, medians of the rounds."""
    rounds, targets = comparison["rounds"], ("engine", mark_of(comparison))

    def cell(operation, figure):
        return " / ".join(
            f"{statistics.median(one[target]['latency_us'][operation][figure] for one in rounds):,.0f}" for target in targets)

    return [(name, operation, *(cell(operation, figure) for figure in ("p50", "p99", "p999", "max")))
            for operation in rounds[0]["engine"]["latency_us"]]


def table(heads, rows):
    for cells in (heads, ("---",) * len(heads), *rows):
        print("| " + " | ".join(cells) + " |")


# Of a plot, in pixels: names left of LEFT, ratios between it and RIGHT.
WIDTH, LEFT, RIGHT, TOP, ROW = 720, 230, 690, 62, 24
DRAWN = (("ops_per_s", "operations per second", "#2980b9"), ("cpu_us_per_op", "processor time per operation", "#c0392b"))


def plot(found):
    """For each comparison the medians of two ratios, as points, and their ranges, as lines, on a logarithmic scale."""
    ratios = {(name, figure): ratios_of(comparison, figure) for name, comparison in found for figure, _, _ in DRAWN}
    all_ratios = [ratio for some in ratios.values() for ratio in some]
    if not all_ratios:
        sys.exit("compared.py: no ratio to draw")
    least, most = math.floor(math.log2(min(all_ratios))), math.ceil(math.log2(max(all_ratios)))
    floor = TOP + ROW * len(found)

    def x(ratio):
        return LEFT + (RIGHT - LEFT) * (math.log2(ratio) - least) / max(most - least, 1)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{floor + 30}" viewBox="0 0 {WIDTH} {floor + 30}" '
           f'font-family="sans-serif" font-size="12"><title>Our store by the other</title>'
           f'<rect width="{WIDTH}" height="{floor + 30}" fill="white"/>'
           f'<text x="{LEFT}" y="18" font-size="14">Our store by {" and ".join(sorted({mark_of(one) for _, one in found}))}</text>']
    for at, (_, said, colour) in enumerate(DRAWN):
        begin = LEFT + 200 * at
        out.append(f'<circle cx="{begin + 6}" cy="36" r="4" fill="{colour}"/><text x="{begin + 16}" y="40">{said}</text>')
    for power in range(least, most + 1):
        ratio, width = 2.0**power, 2 if power == 0 else 1
        out.append(f'<path d="M{x(ratio):.1f} {TOP - 8}V{floor}" stroke="{"#888" if power == 0 else "#ddd"}" stroke-width="{width}"/>'
                   f'<text x="{x(ratio):.1f}" y="{floor + 18}" text-anchor="middle">{ratio:g}</text>')
    for at, (name, _) in enumerate(found):
        middle = TOP + ROW * at + ROW / 2
        out.append(f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{name.partition("-")[2] or name}</text>')
        for which, (figure, _, colour) in enumerate(DRAWN):
            some, y = ratios[name, figure], middle - 4 + 8 * which
            if some:
                out.append(f'<path d="M{x(min(some)):.1f} {y}H{x(max(some)):.1f}" stroke="{colour}" stroke-width="2"/>'
                           f'<circle cx="{x(statistics.median(some)):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    results, pattern = Path(sys.argv[1]), sys.argv[2]
    found = [(path.stem, read(path)) for path in sorted(results.glob(f"{pattern}.txt"), key=lambda path: path.stat().st_mtime)]
    without = [name for name, comparison in found if not comparison]
    found = [(name, comparison) for name, comparison in found if comparison]
    if not found:
        sys.exit(f"compared.py: {results} holds no comparison that is named like {pattern}")
    table(COMPARED, [compared(*one) for one in found])
    print()
    table(LATENCIES, [row for one in found for row in latencies(*one)])
    if len(sys.argv) == 4:
        Path(sys.argv[3]).write_text(plot(found))
    if without:
        sys.exit(f"compared.py: no comparison was printed by {', '.join(without)}: they failed, or are measurements of another kind")


main()
