"""Arithmetic of results: percentiles, latency as an open loop sees it, rates, ratios. Pure."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.harness.cases import Case

QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the sorted values do not exceed."""
    if not ordered:
        raise ValueError("there are no values")
    rank = -(-share * len(ordered) // 1)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def latency_ms(latencies_s: Sequence[float]) -> dict[str, float]:
    """Percentiles, the worst and how many there were; empty without any."""
    if not latencies_s:
        return {}
    ordered = sorted(latencies_s)
    found = {name: round(1000 * quantile(ordered, share), 2) for name, share in QUANTILES.items()}
    return {**found, "max_ms": round(1000 * ordered[-1], 2), "samples": len(ordered)}


class Schedule:
    """The moments when records of an open loop are due: evenly, whatever happened before.

    A latency is counted from the moment a record was *due*, not from when a late client came around
    to sending it: what a stalled system holds back counts with its whole waiting time. That is the
    correction for coordinated omission.

    Args:
        start_s: When the first one is due.
        rate_s: Records per second.
        samples_s: Of how many records per second the latency is noted.
    """

    def __init__(self, start_s: float, rate_s: float, samples_s: float = 1_000) -> None:
        self.taken = 0
        self._start_s = start_s
        self._rate_s = rate_s
        self._every = max(1, round(rate_s / samples_s))

    def wait_s(self, now_s: float) -> float:
        """Until the next record is due; not positive when it is."""
        return self._start_s + self.taken / self._rate_s - now_s

    def take(self) -> float | None:
        """The next record is sent: when it was due if its latency is to be noted, else None."""
        number, self.taken = self.taken, self.taken + 1
        return None if number % self._every else self._start_s + number / self._rate_s


def rates(records: int, seconds: float, record_bytes: int) -> dict[str, float]:
    """Records and 10^6 bytes of values per second."""
    per_s = records / seconds
    return {"records_s": round(per_s), "mb_s": round(per_s * record_bytes / 1e6, 2)}


def median_of(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure that every run has."""
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in shared}


def bound_ratios(
    case: Case, figures: Mapping[str, float], bounds: Mapping[str, float]
) -> dict[str, float]:
    """Compare the figures with those that the disk and a bare gRPC hop allow.

    Throughput is divided by the disk's and by gRPC's; that of a fetch by gRPC's alone. A median
    latency is divided by one fsync and the round trips without which no record is acknowledged.
    There is one round trip to the leader, and with followers one more.
    """
    if "p50_ms" in figures:
        least_ms = bounds["sync_ms"] + bounds["hop_ms"] * (1 if case.rf == 1 else 2)
        return {"ratio_to_least_ms": round(figures["p50_ms"] / least_ms, 2)}
    by = ("hop",) if case.kind == "fetch" else ("fresh", "recycled", "hop")
    return {f"ratio_to_{name}": round(figures["mb_s"] / bounds[f"{name}_mb_s"], 3) for name in by}
