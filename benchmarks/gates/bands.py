"""Bands: between which values a gate lies on a machine, and what a new value says. Mostly pure.

A band comes from the medians of at least five runs: it ends twice as far from their median as the
furthest of them, and 5 % from it at least. A verdict holds the interval of the new median against
the band, not the median alone: a busy machine makes the interval wider, so it does not turn a gate
red by itself. A ratio to the limit of the machine suffers from others on one side, for its two
sides need different things. Its band is widened by as much of the machine as others use more, or
less, than when the band was measured.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gates.gate import Gate, Run

BANDS_FILE: Final = Path(__file__).with_name("bands.json")
RUNS_MIN: Final = 5
"""A band with fewer runs binds nobody."""
REACH: Final = 2.0
SLACK_MIN: Final = 0.05
OUTSIDE_MAX: Final = 0.05
"""How likely the true median is outside of an interval, where there are six values or more."""
OTHERS_SHARE_MAX: Final = 0.5
"""A larger share of the machine for other programs makes a time ratio meaningless."""

OK, RED, ABOVE, SHOWN, SKIPPED, REFUSED = "ok", "red", "above", "shown", "skipped", "refused"


@dataclass(frozen=True, slots=True)
class Band:
    """The band of one gate on one machine."""

    low: float
    high: float
    runs: int
    values: tuple[float, ...]
    """The median of each run."""
    others_share: float
    """Share of the machine that other programs used meanwhile."""
    date: str
    commit: str

    def binds(self, gate: Gate) -> bool:
        """Return whether a lower value is red: enough runs, on an undisturbed machine."""
        return self.runs >= RUNS_MIN and not is_too_busy(gate, self.others_share)

    def widened(self, gate: Gate, others_share: float) -> tuple[float, float]:
        """Its ends beside others who use another share of the machine."""
        if not gate.is_over_limit:
            return self.low, self.high
        left = 1.0 - min(OTHERS_SHARE_MAX, abs(others_share - self.others_share))
        return self.low * left, self.high / left


def is_too_busy(gate: Gate, others_share: float) -> bool:
    """Return whether other programs leave too little of the machine for this gate."""
    return gate.is_of_time and others_share > OTHERS_SHARE_MAX


def band_of(values: Sequence[float], others_share: float, date: str, commit: str) -> Band:
    """The band of some runs, at least one."""
    middle = statistics.median(values)
    below = max(REACH * (middle - min(values)), SLACK_MIN * middle)
    above = max(REACH * (max(values) - middle), SLACK_MIN * middle)
    kept = tuple(round(value, 4) for value in values)
    share = round(others_share, 3)
    ends = round(max(0.0, middle - below), 4), round(middle + above, 4)
    return Band(*ends, len(kept), kept, share, date, commit)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of the median by order statistics; the whole range of few values."""
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    for number in range(count // 2):
        outside += 2 * math.comb(count, number) / 2**count
        if outside > OUTSIDE_MAX:
            break
        cut = number
    return ordered[cut], ordered[count - 1 - cut]


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate and what was found."""

    gate: Gate
    by_run: tuple[float, ...] = ()
    """The median of each run that has a value."""
    low: float = 0.0
    high: float = 0.0
    """Ends of the interval of the median."""
    others_share: float = 0.0
    band: Band | None = None

    @property
    def value(self) -> float | None:
        """The median of all runs."""
        return statistics.median(self.by_run) if self.by_run else None

    @property
    def verdict(self) -> str:
        """``ok``, ``red``, ``above``, ``shown`` (nothing binds), ``skipped`` or ``refused``."""
        if not self.by_run:
            return SKIPPED
        if not self.gate.is_ratio or self.band is None or not self.band.binds(self.gate):
            return SHOWN
        if is_too_busy(self.gate, self.others_share):
            return REFUSED
        low, high = self.band.widened(self.gate, self.others_share)
        if self.high < low:
            return RED
        return ABOVE if self.low > high else OK

    def line(self) -> str:
        """For people and for ``grep``."""
        value = self.value
        if value is None:
            return f"gate: {self.gate.name} value=- unit={self.gate.unit} {SKIPPED}"
        found = f"value={number(value)} interval={number(self.low)}..{number(self.high)}"
        found += f" band={self.band_text()} others={self.others_share:.0%} unit={self.gate.unit}"
        end = f": new floor {number(self.low)}" if self.verdict == ABOVE else ""
        return f"gate: {self.gate.name} {found} {self.verdict}{end}"

    def band_text(self) -> str:
        """Its ends; where it binds nobody, how many runs it has and how busy the machine was."""
        if self.band is None:
            return "-"
        text = f"{number(self.band.low)}..{number(self.band.high)}"
        if self.band.binds(self.gate):
            return text
        return f"{text} (runs={self.band.runs}, others={self.band.others_share:.0%})"


def judge(gate: Gate, runs: Sequence[Run], turns: int, band: Band | None) -> Judged:
    """Judge a gate by its runs and its band."""
    by_run = [found for run in runs if (found := gate.values(run, turns))]
    if not by_run:
        return Judged(gate, band=band)
    low, high = interval([value for values in by_run for value in values])
    medians = tuple(statistics.median(values) for values in by_run)
    return Judged(gate, medians, low, high, gate.others_share(runs, turns), band)


def number(value: float) -> str:
    """Three digits, or whole."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# --- the file -------------------------------------------------------------------------------------

Bands = Mapping[str, Mapping[str, Band]]
"""By machine, by gate."""


def read(path: Path | None = None) -> dict[str, dict[str, Band]]:
    """All bands, of ``bands.json`` unless told otherwise; none where there is no file."""
    path = path or BANDS_FILE
    if not path.exists():
        return {}
    stored: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text())
    return {
        machine: {
            name: Band(**{**fields, "values": tuple(fields["values"])})
            for name, fields in gates.items()
        }
        for machine, gates in stored.items()
    }


def write(bands: Bands, path: Path | None = None) -> None:
    """Write all bands, ordered by machine and gate, one line for each gate."""
    machines = []
    for machine, gates in sorted(bands.items()):
        lines = [
            f"    {json.dumps(name)}: {json.dumps(asdict(band))}"
            for name, band in sorted(gates.items())
        ]
        machines.append(f"  {json.dumps(machine)}: {{\n" + ",\n".join(lines) + "\n  }")
    (path or BANDS_FILE).write_text("{\n" + ",\n".join(machines) + "\n}\n")


def find(bands: Bands, machine: str, gate: Gate) -> Band | None:
    """The band of this machine; a ratio to the base tree has one that holds everywhere.

    The widest one of any machine: how far equal trees differ depends on its noise.
    """
    own = bands.get(machine, {}).get(gate.name)
    if own is not None or not gate.is_over_base:
        return own
    others = [gates[gate.name] for gates in bands.values() if gate.name in gates]
    return max(others, key=lambda band: band.high - band.low, default=None)


def added(before: Band | None, judged: Judged, date: str, commit: str) -> Band:
    """A band with the runs of one invocation; those of the same commit stay in it."""
    earlier = before.values if before is not None and before.commit == commit else ()
    share = judged.others_share
    if before is not None and earlier:
        share = (share * len(judged.by_run) + before.others_share * len(earlier)) / (
            len(judged.by_run) + len(earlier)
        )
    return band_of((*earlier, *judged.by_run), share, date, commit)
