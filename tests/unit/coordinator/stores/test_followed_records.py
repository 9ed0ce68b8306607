"""R122: A hole in what etcd has told shows, and a duplicate does no harm."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import InternalError
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import CounterRecord, PositionRecord
from icecore_coordinator.stores.etcd_layout import EtcdHead
from icecore_coordinator.stores.etcd_messages import DELETED, KeyValue, WatchResponse
from icecore_coordinator.stores.followed_records import FollowedRecords

HEAD = EtcdHead(1, "store", 3, "holder", 7)


def stored(name: str, next_value: int, version: int) -> str:
    """As etcd has a counter."""
    return f"{version} {encode(CounterRecord(name, next_value, version))}"


def known(records: FollowedRecords) -> dict[str, tuple[int, int]]:
    """Value and version of each counter."""
    counters = records.state.counters.values()
    return {each.name: (each.next_value, each.version) for each in counters}


def row(key: str, value: str, version: int = 1) -> Any:
    return KeyValue(key=f"p/{key}".encode(), value=value.encode(), version=version)


def counter(name: str, next_value: int, version: int = 1, count: int = 0) -> Any:
    """A row; ``count`` is etcd's own of its puts, where that is another one."""
    return row(f"record/counter/{name}", stored(name, next_value, version), count or version)


def head_row(head: EtcdHead) -> Any:
    return row("head", head.encode().decode())


def told(*rows: Any, deletes: tuple[str, ...] = ()) -> Any:
    answer = WatchResponse()
    for each in rows:
        answer.events.add(kv=each)
    for key in deletes:
        answer.events.add(type=DELETED, kv=row(key, ""))
    return answer.events


@pytest.fixture
def records() -> FollowedRecords:
    found = FollowedRecords(b"p/", ClusterState())
    found.load([head_row(HEAD), counter("a", 5), row("candidate/m/1", "{}")])
    return found


def after(**changes: Any) -> Any:
    return head_row(replace(HEAD, **changes))


def test_changes_are_taken(records: FollowedRecords) -> None:
    assert records.change(told(counter("b", 1), after(revision=8)))
    assert records.change(told(counter("a", 6, 2), after(revision=9), deletes=()))
    assert known(records) == {"a": (6, 2), "b": (1, 1)} and len(records) == 2


def test_a_record_goes_by_its_key(records: FollowedRecords) -> None:
    """An event of a deletion has nothing else."""
    position = PositionRecord(b"t" * 16, "reader", 3, version=1)
    key = f"record/{position.key}"
    assert records.change(told(row(key, f"1 {encode(position)}"), after(revision=8)))
    assert len(records) == 2 and records.state.positions.records
    assert records.change(told(after(revision=9), deletes=(key,)))
    assert len(records) == 1 and not records.state.positions.records


def test_a_record_whose_version_was_set_is_ahead(records: FollowedRecords) -> None:
    records.change(told(counter("b", 1, 70, count=1), after(revision=8)))
    assert records.ahead == {"counter/b": 69}
    key = "record/counter/b"
    with pytest.raises(InternalError):  # the coordinator deletes no counters
        records.change(told(after(revision=9), deletes=(key,)))
    assert records.ahead == {}


def test_the_same_again_changes_nothing(records: FollowedRecords) -> None:
    change = told(counter("b", 1), after(revision=8))
    assert records.change(change) and records.change(change)
    assert known(records) == {"a": (5, 1), "b": (1, 1)}


def test_a_record_of_another_kind_only_counts(records: FollowedRecords) -> None:
    """A later version may have stored it: etcd counts it, too."""
    assert records.change(told(row("record/unheard/of", "1 {}"), after(revision=8)))
    assert len(records) == 2
    assert records.change(told(after(revision=9), deletes=("record/unheard/of",)))
    assert len(records) == 1


def test_what_is_no_record_is_refused(records: FollowedRecords) -> None:
    with pytest.raises(InternalError):
        records.change(told(row("record/counter/b", "1 {}"), after(revision=8)))


@pytest.mark.parametrize(
    ("changes", "is_whole"),
    [
        ({"revision": 8}, True),
        ({"epoch": 4, "holder": "next"}, True),
        ({"revision": 8, "staged": 3}, True),
        ({"revision": 9}, False),
        ({"revision": 6}, False),
        ({"revision": 8, "epoch": 4, "holder": "next"}, False),
        ({"store": "another"}, False),
    ],
)
def test_a_head_that_counts_on_by_more_shows_a_hole(
    records: FollowedRecords, changes: dict[str, Any], is_whole: bool
) -> None:
    assert records.change(told(after(**changes))) is is_whole


def test_metadata_that_are_gone_are_a_hole(records: FollowedRecords) -> None:
    assert not records.change(told(deletes=("head",)))


def test_the_first_head_of_an_empty_prefix_is_none(records: FollowedRecords) -> None:
    records.begin()
    assert records.change(told(counter("x", 1), head_row(HEAD)))
    assert known(records) == {"x": (1, 1)}
