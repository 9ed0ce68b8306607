"""The tests of the index notice known mistakes: the story of one log, with each and without."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from icecore_node.storage.index.points import FAMILY
from icecore_node.storage.segment_engine.index_runs import RUNS_MAX
from tests.simulation import mistakes_index as mistakes
from tests.simulation.mistakes import Mistake
from tests.support.index_oracle import check_found, keyed, maintain_all
from tests.unit.node.storage.segment_engine.test_segment_index import Bench, cut

MISTAKES = [
    mistakes.index_ahead_of_data,
    mistakes.cut_keeps_entries,
    mistakes.entries_lost_in_merge,
    mistakes.entries_lost_at_seal,
    mistakes.range_delete_too_wide,
    mistakes.number_used_twice,
]


def story() -> None:
    """A log that grows, is cut, grows again over restarts, and is sealed."""
    bench = Bench()
    log = bench.opened()
    for number in range(3 * RUNS_MAX):
        bench.add(log, *(keyed([b"k%d" % (number * i)], [["t"]]) for i in range(40)))
        # What comes while a run is made is not part of it.
        bench.engine.index.maintain()
        bench.add(log, keyed([b"recent"]))
        maintain_all(bench.engine.index)
        bench.add(log, keyed([b"newest"]))
        assert check_found(bench.engine.index, log) == []
        bench.restart()
        assert check_found(bench.engine.index, log) == []
    cut(bench, log, len(log.batches) // 2)
    bench.add(log, *(keyed([b"other"]) for _ in range(len(log.batches))))
    check_found(bench.engine.index, log)
    bench.restart()
    check_found(bench.engine.index, log)
    bench.seal(log)
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


@pytest.mark.parametrize("mistake", [nullcontext, *MISTAKES], ids=lambda each: each.__name__)
def test_a_known_mistake_is_noticed(mistake: Callable[[], Mistake]) -> None:
    with mistake():
        if mistake is nullcontext:
            story()
            return
        with pytest.raises(AssertionError):
            story()


@pytest.mark.parametrize(("per_batch", "runs"), [(1, 16), (100, 160)])
def test_what_an_entry_costs_until_it_is_sealed(per_batch: int, runs: int) -> None:
    """Write amplification, by the bytes of an entry (12). In runs of 256 Ki entries 16 runs are
    four million batches of one record, 160 forty million records in batches; runs are smaller
    here."""
    bench = Bench()
    log = bench.opened()
    entries_per_run = 100 if per_batch > 1 else bench.settings.entries_per_run
    written = {"recent": 0, "block": 0}
    write = bench.index.write

    def counted(puts: list[tuple[str, bytes, bytes]]) -> None:
        for family, key, value in puts:
            if family == FAMILY and key[8] == 0:
                written["recent"] += len(key) + len(value)
            elif family == FAMILY:
                written["block"] += (len(value) - 16) if key[8] == 2 else 0
        write(puts)

    bench.index.write = counted  # type: ignore[method-assign, assignment]
    count = runs * entries_per_run // per_batch
    for number in range(count):
        first = number * per_batch
        bench.add(log, keyed([b"k%d" % (first + i) for i in range(per_batch)]))
        bench.engine.index.maintain()
    maintain_all(bench.engine.index)
    entries = count * per_batch
    assert written["recent"] / entries == pytest.approx(12 + (17 + 12) / per_batch)
    assert written["block"] / (12 * entries) < (1.7 if runs == 16 else 3.1)
