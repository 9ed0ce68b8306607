"""``icecore segment delete`` takes the oldest sealed segments, and says why it takes no others."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from icecore.cli.app import main
from icecore.cli.records.delete_records import end_of_head
from icecore.cli.session import CommandSession
from icecore.client.types import DeletedRecords
from icecore.errors import InvalidRequestError
from icecore.model import Epoch, Segment, SegmentId, SegmentState

SEALED, ACTIVE = SegmentState.SEALED, SegmentState.ACTIVE


def segment(number: int, state: SegmentState = SEALED) -> Segment:
    return Segment(
        segment_id=SegmentId(number),
        topic_id=b"t" * 16,
        topic="t",
        partition=0,
        state=state,
        epoch=Epoch(1),
        base_offset=10 * number,
        end_offset=10 * number + 10 if state is SEALED else -1,
    )


CHAIN = [segment(3), segment(5), segment(8), segment(9, ACTIVE)]


@pytest.mark.parametrize(("named", "end"), [([3], 40), ([5, 3], 60), ([3, 5, 8, 8], 90)])
def test_the_head_ends_where_its_last_segment_does(named: list[int], end: int) -> None:
    assert end_of_head(CHAIN, named) == end


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ([4], "has no segment 4"),
        ([3, 9], "segment 9 is ACTIVE and only sealed ones go"),
        ([5], "segment 5 lies behind segment 3, which would stay"),
        ([3, 8], "name 5 as well"),
    ],
)
def test_others_are_refused_with_the_reason(named: list[int], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        end_of_head(CHAIN, named)


class FakeAdmin:
    """A topic of two partitions with a thousand records each; notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[int, int], bool]] = []

    def call(self, action: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(action(self))

    async def describe_topics(self, _: list[str]) -> list[Any]:
        return [SimpleNamespace(partitions=[SimpleNamespace(partition=each) for each in (0, 1)])]

    async def list_segments(self, *_: object) -> list[Segment]:
        return CHAIN

    async def list_offsets(self, _: str, moment: datetime, partitions: Any) -> dict[int, Any]:
        assert moment.year == 2026
        return {each: SimpleNamespace(offset=7) for each in partitions or (0, 1)}

    async def delete_records(
        self, _: str, offsets: dict[int, int], *, dry_run: bool = False
    ) -> list[DeletedRecords]:
        self.asked.append((offsets, dry_run))
        return [DeletedRecords(each, 0, offset, ()) for each, offset in offsets.items()]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(CommandSession, "admin", lambda _, action: fake.call(action))
    return fake


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        ("topic delete-records t --before-offset 9", {0: 9, 1: 9}),
        ("topic delete-records t --before-offset 9 --partition 1", {1: 9}),
        ("topic delete-records t --before-time 2026-01-01 --partition 0", {0: 7}),
        ("segment delete t 0 3 5", {0: 60}),
    ],
)
def test_first_it_is_said_what_goes(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], words: str, offsets: dict[int, int]
) -> None:
    assert run(*words.split(), "--dry-run", "--json") == 0
    assert admin.asked == [(offsets, True)]
    shown = json.loads(capsys.readouterr().out)["items"]
    assert {each["partition"]: each["log_start_offset"] for each in shown} == offsets
    assert run(*words.split(), "--yes") == 0
    assert admin.asked[1:] == [(offsets, True), (offsets, False)]


def test_nobody_is_asked_where_nobody_sits_and_nothing_goes(admin: FakeAdmin) -> None:
    assert run("topic", "delete-records", "t", "--before-offset", "9") == 2
    assert admin.asked == [({0: 9, 1: 9}, True)]


@pytest.mark.parametrize(
    "words",
    [
        "topic delete-records t",
        "topic delete-records t --before-offset 1 --before-time 2026-01-01",
        "topic delete-records t --before-offset -1",
        "topic delete-records t --before-time yesterday",
        "segment delete t 0",
    ],
)
def test_wrong_usage_changes_nothing(admin: FakeAdmin, words: str) -> None:
    assert run(*words.split()) == 2
    assert admin.asked == []


def test_a_segment_that_can_not_go_is_an_error(admin: FakeAdmin) -> None:
    assert run("segment", "delete", "t", "0", "5", "--yes") == 1
    assert admin.asked == []
