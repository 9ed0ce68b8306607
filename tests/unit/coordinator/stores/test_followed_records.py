"""R122: A hole in what etcd has told shows, and a duplicate does no harm."""

from dataclasses import replace
from typing import Any

import pytest

from icecore_coordinator.stores.etcd_layout import EtcdHead
from icecore_coordinator.stores.etcd_messages import DELETED, KeyValue, WatchResponse
from icecore_coordinator.stores.followed_records import FollowedRecords
from icecore_coordinator.stores.metadata_store import Stored

HEAD = EtcdHead(1, "store", 3, "holder", 7)


def row(key: str, value: str, version: int = 1) -> Any:
    return KeyValue(key=f"p/{key}".encode(), value=value.encode(), version=version)


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
    found = FollowedRecords(b"p/")
    found.load([head_row(HEAD), row("record/a", "1 A"), row("candidate/m/1", "{}")])
    return found


def after(**changes: Any) -> Any:
    return head_row(replace(HEAD, **changes))


def test_changes_are_taken(records: FollowedRecords) -> None:
    assert records.change(told(row("record/b", "1 B"), after(revision=8)))
    assert records.change(told(row("record/a", "2 AA", 2), after(revision=9), deletes=()))
    assert records.change(told(after(revision=10), deletes=("record/b",)))
    assert records.scan("", "", 0) == [Stored("a", "AA", 2)]
    assert len(records) == 1


def test_a_record_whose_version_was_set_is_ahead(records: FollowedRecords) -> None:
    records.change(told(row("record/b", "70 B", 1), after(revision=8)))
    assert records.ahead == {"b": 69}
    records.change(told(after(revision=9), deletes=("record/b",)))
    assert records.ahead == {}


def test_the_same_again_changes_nothing(records: FollowedRecords) -> None:
    change = told(row("record/b", "1 B"), after(revision=8))
    assert records.change(change) and records.change(change)
    assert records.scan("b", "", 0) == [Stored("b", "B", 1)]


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
    assert records.change(told(row("record/x", "1 X"), head_row(HEAD)))
    assert records.scan("", "", 0) == [Stored("x", "X", 1)]


def test_pages(records: FollowedRecords) -> None:
    records.load([row(f"record/k{number}", "1 v") for number in (3, 1, 2)])
    assert [each.key for each in records.scan("k", "", 2)] == ["k1", "k2"]
    assert [each.key for each in records.scan("k", "k2", 2)] == ["k3"]
    assert [each.key for each in records.scan("", "k3", 0)] == []
