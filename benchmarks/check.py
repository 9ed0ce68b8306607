"""Whether this revision is slower than the stored one: ratios against ``baseline.json``.

    make bench-check    # or: python -m benchmarks.check [--runs 3] [--tolerance 0.25] [--update]

Compares ratios only: an absolute figure says as much about the machine as about the code. A ratio
may be up to ``--tolerance`` worse than its baseline, because the disk of a shared machine changes
by as much from minute to minute. Exit status 1 when one is worse. ``--update`` stores what was
measured as the new baseline; ``--json FILE`` takes what ``benchmarks.gates --json`` wrote instead
of measuring.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gate_list import GROUPS, Gate
from benchmarks.gates import choose, measure
from benchmarks.lifetime import exit_with
from benchmarks.runner import Times

BASELINE = Path(__file__).parent / "baseline.json"
TOLERANCE = 0.25
RUNS = 3


def ratios_alone() -> dict[str, Gate]:
    """Gates that are ratios and need nothing but ours."""
    return {
        gate.name: gate
        for group in GROUPS
        for gate in group.gates
        if gate.unit == "ratio" and not gate.needs & {"kafka", "kafka_default"}
    }


def compare(
    baseline: Mapping[str, float], values: Mapping[str, float], tolerance: float
) -> Iterator[tuple[str, bool]]:
    """A line for each ratio that both have, and whether it is good enough."""
    gates = {gate.name: gate for group in GROUPS for gate in group.gates}
    for name in sorted(baseline.keys() & values.keys() & gates.keys()):
        before, now = baseline[name], values[name]
        is_better_low = gates[name].ceiling is not None
        bound = before * (1 + tolerance) if is_better_low else before * (1 - tolerance)
        is_good = now <= bound if is_better_low else now >= bound
        word = "ok" if is_good else "worse"
        line = f"check: {name} value={now:.3g} baseline={before:.3g} bound={bound:.3g} {word}"
        yield line, is_good


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="share, default 0.25")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results of benchmarks.gates")
    parser.add_argument("--update", action="store_true", help="make this the baseline")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if options.json:
        lines = [json.loads(line) for line in options.json.read_text().splitlines()]
        values = {each["name"]: each["value"] for each in lines if each.get("unit") == "ratio"}
        values = {name: value for name, value in values.items() if name in ratios_alone() and value}
    else:
        found = measure(choose(list(ratios_alone())), options.folder, options.runs, Times())
        values = {gate.name: value for gate, value in found.gates if value is not None}
    if options.update:
        rounded = {name: round(value, 3) for name, value in sorted(values.items())}
        BASELINE.write_text(json.dumps(rounded, indent=2) + "\n")
        return 0
    is_all_good = True
    for line, is_good in compare(json.loads(BASELINE.read_text()), values, options.tolerance):
        print(line)
        is_all_good &= is_good
    return int(not is_all_good)


if __name__ == "__main__":
    exit_with(main)
