#!/usr/bin/env python3
"""compared.py RESULTS PATTERN: the table of those comparisons that `make bench` has measured and whose name is like PATTERN, as 'apart-*'.

RESULTS is the folder of the results, $CARGO_TARGET_DIR/bench. Prints Markdown: medians of the ratios within a round, our store by the other,
with their range, and medians of each store's own figures. docs/benchmarks.md shows what it makes.
"""

import json
import statistics
import sys
from pathlib import Path

HEADS = ("measurement", "op/s", "op/s, ratio (rounds)", "CPU µs/op, ratio (rounds)", "stalled s", "WAR", "SAR at the end", "SAR settled")


def read(path):
    """The object that a comparison has printed, or None."""
    text = path.read_text()
    begin = text.find("\n{")
    found = json.JSONDecoder().raw_decode(text, begin + 1)[0] if begin >= 0 else {}
    return found if "rounds" in found else None


def row(name, comparison):
    rounds = comparison["rounds"]
    mark = next(target for target in rounds[0] if target.startswith("rocksdb"))

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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results, pattern = Path(sys.argv[1]), sys.argv[2]
    rows = [(path.stem, read(path)) for path in sorted(results.glob(f"{pattern}.txt"), key=lambda path: path.stat().st_mtime)]
    rows = [row(name, found) for name, found in rows if found]
    if not rows:
        sys.exit(f"compared.py: {results} holds no comparison that is named like {pattern}")
    print("| " + " | ".join(HEADS) + " |")
    print("|" + "---|" * len(HEADS))
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


main()
