"""Write `docs/performance.md` from `benchmarks/results/`, or check that what is committed is fresh.

The newest line of each gate counts, of the machine that was measured last: see `gates/page.py`.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks are no installed package

from benchmarks.gates import bands  # noqa: E402
from benchmarks.gates.page import document  # noqa: E402

TARGET = ROOT / "docs/performance.md"
RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    """Bring the file up to date, or with --check exit 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    files = sorted(RESULTS.glob("*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    fresh = document(lines, bands.read())
    if parser.parse_args().check:
        if not TARGET.exists() or TARGET.read_text() != fresh:
            sys.exit(f"{TARGET.name} is stale, run `make references`")
        return
    TARGET.write_text(fresh)


if __name__ == "__main__":
    main()
