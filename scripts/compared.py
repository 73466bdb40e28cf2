#!/usr/bin/env python3
"""compared.py RESULTS PATTERN: tables of those comparisons that `make bench` has measured and whose name is like PATTERN, as 'apart-*'.

RESULTS is the folder of the results, $CARGO_TARGET_DIR/bench. Prints Markdown: medians of the ratios within a round, our store by the other,
with their range, and medians of each store's own figures, but the sum of its stalls; then latencies. docs/benchmarks.md shows what it
makes.
"""

import json
import statistics
import sys
from pathlib import Path

COMPARED = ("measurement", "op/s", "op/s, ratio (rounds)", "CPU µs/op, ratio (rounds)", "stalled s", "WAR", "SAR at the end", "SAR settled")
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


def compared(name, comparison):
    rounds, mark = comparison["rounds"], mark_of(comparison)

    def both(figure):
        pairs = [(one["engine"].get(figure), one[mark].get(figure)) for one in rounds]
        return [pair for pair in pairs if None not in pair]

    def ratio(figure):
        ratios = [ours / theirs for ours, theirs in both(figure) if theirs]
        if not ratios:
            return "–"
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    def each(figure, by=1, join=statistics.median):
        pairs = both(figure)
        return " / ".join(f"{join(side) / by:.2f}" for side in zip(*pairs)) if pairs else "–"

    operations = statistics.median(ours for ours, _ in both("ops_per_s"))
    return (name, f"{operations:,.0f}", ratio("ops_per_s"), ratio("cpu_us_per_op"), each("stall_ms", 1000, sum), each("war"),
            each("sar_at_end"), each("sar"))


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


def main():
    if len(sys.argv) != 3:
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
    if without:
        sys.exit(f"compared.py: no comparison was printed by {', '.join(without)}: they failed, or are measurements of another kind")


main()
