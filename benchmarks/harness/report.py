"""A table and plots of results.

    python -m benchmarks.harness.report FILE… [--plots FOLDER]

FILE holds JSON lines of ``benchmarks.run``. The table is Markdown; the plots are PNG and SVG.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]

COLUMNS = (
    ("system", "system"),
    ("what", "benchmark"),
    ("B", "record_bytes"),
    ("partitions", "partitions"),
    ("keys", "spread"),
    ("RF", "rf"),
    ("acks", "acks"),
    ("flush", "flush"),
    ("API", "api"),
    ("records/s", "records_s"),
    ("MB/s", "mb_s"),
    ("of limit", "ratio_to_fresh"),
    ("of gRPC", "ratio_to_hop"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    ("p99.9 ms", "p999_ms"),
    ("× least", "ratio_to_least_ms"),
    ("of Kafka", "records_s_to_kafka"),
)
LATENCIES = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms"}
SERIES = ("system", "spread", "acks", "flush", "api")


def read(paths: Iterable[Path]) -> list[Line]:
    """All lines of the files."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]


def table(lines: Iterable[Line]) -> str:
    """Results as a Markdown table; columns that nobody fills are left out."""
    rows = [line for line in lines if "system" in line]
    columns = [(title, key) for title, key in COLUMNS if any(key in row for row in rows)]
    cells = [[title for title, _ in columns], ["---"] * len(columns)]
    cells += [[_cell(row.get(key)) for _, key in columns] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells) if rows else "no results"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return str(value)


def plot(lines: Iterable[Line], folder: Path) -> list[Path]:
    """Throughput over partitions and latency of open loops, each as PNG and SVG; the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    rows = [line for line in lines if "system" in line]
    written = []
    for what in ("produce", "fetch", "mixed"):
        chosen = [row for row in rows if row["benchmark"] == what]
        if chosen:
            written += _save(_throughput(pyplot, chosen, what), folder / what)
    chosen = [row for row in rows if row["benchmark"] in ("open", "single")]
    if chosen:
        figure, axes = pyplot.subplots(figsize=(9, 5))
        _latency(axes, chosen)
        written += _save(figure, folder / "latency")
    return written


def _throughput(pyplot: Any, rows: Sequence[Line], what: str) -> Any:
    """A panel per record size and replication factor, a line per combination of the rest."""
    panels = sorted({(row["rf"], row["record_bytes"]) for row in rows})
    size = (7 * len(panels), 5)
    figure, grid = pyplot.subplots(1, len(panels), figsize=size, squeeze=False)
    for axes, panel in zip(grid[0], panels, strict=True):
        shown = [row for row in rows if (row["rf"], row["record_bytes"]) == panel]
        for label, group in groupby(sorted(shown, key=_series), key=_series):
            points = sorted((row["partitions"], row["records_s"]) for row in group)
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        title = f"{what}, {panel[1]} B, RF {panel[0]}"
        axes.set(xscale="log", yscale="log", xlabel="partitions", ylabel="records/s", title=title)
        axes.legend(fontsize="x-small")
        axes.grid(visible=True, which="both", alpha=0.3)
    return figure


def _series(row: Line) -> str:
    return " ".join(str(row[name]) for name in SERIES)


def _latency(axes: Any, rows: Sequence[Line]) -> None:
    for row in rows:
        shape = f"{row['system']} {row['benchmark']} {row['record_bytes']} B × {row['partitions']}"
        label = f"{shape} RF {row['rf']} {row['flush']}"
        axes.plot(
            list(LATENCIES), [row[key] for key in LATENCIES.values()], marker="o", label=label
        )
    axes.set(yscale="log", ylabel="ms from due to acknowledged", title="latency")
    axes.legend(fontsize="x-small")
    axes.grid(visible=True, which="both", alpha=0.3)


def _save(figure: Any, path: Path) -> list[Path]:
    files = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=120, bbox_inches="tight")
    return files


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--plots", type=Path, help="folder for PNG and SVG files")
    options = parser.parse_args()
    lines = read(options.files)
    for line in lines:
        if line["benchmark"] == "machine":
            print(f"{line['cpu']}, {line['cores']} cores, revision {line['revision']}\n")
    print(table(lines))
    if options.plots:
        try:
            print(*plot(lines, options.plots), sep="\n")
        except ImportError as error:
            parser.error(f"{error}: pip install -e '.[bench]'")


if __name__ == "__main__":
    main()
