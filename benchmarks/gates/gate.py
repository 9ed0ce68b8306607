"""One gate as data: what is measured, which figures it divides, and its value in one turn. Pure.

A gate is a ratio of two figures that were measured in the same turn. A greater value is always the
better one: where small figures are good, the ratio is turned over. An absolute figure has a line,
too, and binds nobody.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.harness.cases import ICECORE, Case

LIMIT: Final = "limit"
"""The disk instead of a system; the case tells the number of writers and of their files."""
LEAST: Final = "least"
"""One sync and the round trips without which no record is acknowledged."""
FAILOVER: Final = "failover"
"""``benchmarks.failover``: a cluster of its own, one node killed."""
LOOKUP: Final = "lookup"
"""``benchmarks.lookup``: a node of its own with 10 M records."""
COLD: Final = "cold_reads"
"""``benchmarks.cold_reads``: what a node reads of a MinIO."""

RATIO: Final = "ratio"
BASE_PREFIX: Final = "base_"
"""Prefix of gates that divide by the base tree, and of its measurements."""
PROCESSOR_TIME: Final = "cpu_s_per_gb"
"""Processor seconds of a system and its client for 10^9 bytes of values."""
TURNS: Final = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, which each turn repeats."""

    on: str
    """A system, or one of the names above."""
    case: Case
    is_base: bool = False
    """True for the code of the base tree, client included."""


def ours(case: Case) -> Measurement:
    """Measure our system with its default settings."""
    return Measurement(ICECORE, case)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measurement of one turn."""

    figures: Mapping[str, float]
    others_share: float = 0.0
    """Share of the processors that other programs used meanwhile."""


Turn = Mapping[str, Outcome]
"""By measurement."""
Run = Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Gate:
    """One ratio, or one figure that is shown."""

    name: str
    about: str
    """For the table of figures."""
    of: str
    """The measurement that has the figure."""
    figure: str = "records_s"
    over: str = ""
    """By whose it is divided; empty = by nobody's."""
    over_figure: str = ""
    """The name of the figure in the other measurement, where it differs."""
    unit: str = RATIO
    is_small_good: bool = False
    """Then the ratio is turned over."""

    @property
    def needs(self) -> set[str]:
        """Measurements."""
        return {self.of, self.over} - {""}

    @property
    def is_ratio(self) -> bool:
        """Return whether a band can bind this gate."""
        return self.unit == RATIO

    @property
    def is_over_base(self) -> bool:
        """Return whether the gate compares this tree with the base tree."""
        return self.name.startswith(BASE_PREFIX)

    @property
    def is_over_limit(self) -> bool:
        """Return whether the gate divides by a limit of the machine and not by a system."""
        return self.over in (LIMIT, LEAST)

    @property
    def is_of_time(self) -> bool:
        """Return whether the figure counts waiting, which other programs lengthen."""
        return self.figure != PROCESSOR_TIME

    def value(self, turn: Turn) -> float | None:
        """The value of one turn; None where a measurement or its figure is missing."""
        if not self.needs <= turn.keys():
            return None
        found = turn[self.of].figures.get(self.figure)
        if not self.over or found is None:
            return found
        by = turn[self.over].figures.get(self.over_figure or self.figure)
        if not by or not found:
            return None
        return by / found if self.is_small_good else found / by

    def disturbance(self, turn: Turn) -> float:
        """By how much more others used of the machine beside one side than beside the other."""
        if not self.is_of_time:
            return 0.0
        shares = self._shares(turn)
        return max(shares) - min(shares)

    def _shares(self, turn: Turn) -> list[float]:
        return [turn[name].others_share for name in sorted(self.needs)]

    def chosen(self, run: Run, turns: int) -> list[Turn]:
        """The turns of a run that count: the least disturbed ones, in their order."""
        known = [turn for turn in run if self.value(turn) is not None]
        best = sorted(range(len(known)), key=lambda i: self.disturbance(known[i]))[:turns]
        return [known[i] for i in sorted(best)]

    def values(self, run: Run, turns: int) -> list[float]:
        """The values of the turns that count."""
        found = (self.value(turn) for turn in self.chosen(run, turns))
        return [value for value in found if value is not None]

    def others_share(self, runs: Sequence[Run], turns: int) -> float:
        """The median of what others used beside both sides; 0 without any."""
        chosen = (turn for run in runs for turn in self.chosen(run, turns))
        shares = [statistics.mean(self._shares(turn)) for turn in chosen]
        return statistics.median(shares) if shares else 0.0


def shown(name: str, about: str, of: str, figure: str, unit: str) -> Gate:
    """A figure that binds nobody."""
    return Gate(name, about, of, figure, unit=unit)


@dataclass(frozen=True, slots=True)
class Group:
    """Measurements that take turns, and the gates on them."""

    measurements: Mapping[str, Measurement]
    gates: tuple[Gate, ...]
    turns: int = TURNS

    def only(self, names: Iterable[str]) -> "Group":
        """The group with only these gates and their measurements."""
        wanted = set(names)
        gates = tuple(gate for gate in self.gates if gate.name in wanted)
        needed = {each for gate in gates for each in gate.needs}
        kept = {name: each for name, each in self.measurements.items() if name in needed}
        return replace(self, measurements=kept, gates=gates)

    def beside_base(self, *gates: Gate) -> "Group":
        """Add gates that divide a figure by the base tree's.

        Args:
            gates: As they would be without the base; ``base_`` is put before their names.
        """
        twins = {
            BASE_PREFIX + gate.of: replace(self.measurements[gate.of], is_base=True)
            for gate in gates
        }
        added = (
            replace(gate, name=BASE_PREFIX + gate.name, over=BASE_PREFIX + gate.of)
            for gate in gates
        )
        return replace(
            self,
            measurements={**self.measurements, **twins},
            gates=(*self.gates, *added),
        )
