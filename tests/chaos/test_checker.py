"""The judge of recorded runs: a good recording passes, one bad recording per category is caught."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from icecore.model import Acks
from tests.chaos.record import first_acks_ms, id_of, load, longest_stalls_ms, value_of
from tests.chaos.run import COLUMNS, Report, summary
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.storage import STORAGE
from tests.simulation.checkers import check, lost_by_leader_acks

TOPIC = "chaos"
Event = dict[str, Any]


def invoke(number: int, t: float, acks: str = "all") -> Event:
    value = f"p/0/{number}"
    about = {"process": "p", "partition": 0, "value": value, "acks": acks, "seq": number}
    return {"f": "produce", "type": "invoke", "t": t, **about}


def outcome(number: int, t: float, kind: str = "ok", **more: object) -> Event:
    about = {"partition": 0, "value": f"p/0/{number}", **more}
    return {"f": "produce", "type": kind, "t": t, **about}


def read(process: str, t: float, *records: tuple[int, str]) -> Event:
    return {"f": "read", "t": t, "process": process, "partition": 0, "records": records}


def final(*records: tuple[int, str]) -> Event:
    return {"f": "final", "t": 9.0, "partition": 0, "log_start": 0, "records": records}


def segment(segment_id: int, base: int, end: int, *digests: tuple[str, str]) -> Event:
    ends = {"base_offset": base, "end_offset": end, "digests": digests}
    return {"f": "segment-observed", "t": 9.0, "partition": 0, "segment_id": segment_id, **ends}


def watermark(offset: int, t: float) -> Event:
    about = {"process": "node-1#7", "partition": 0, "offset": offset}
    return {"f": "watermark", "t": t, **about}


def answer(*records: tuple[int, str], complete: bool = True) -> Event:
    """To who asked for keys 1 and 2, which are those of these numbers."""
    tags: dict[str, list[str]] = {"tags_any": [], "tags_all": [], "tags_none": []}
    about = {"keys": ["key 1", "key 2"], "end_offset": 3, "complete": complete, **tags}
    return {"f": "answer", "t": 8.0, "partition": 0, "records": records, **about}


RECORDS = [(0, "p/0/0"), (1, "p/0/1"), (2, "p/0/2")]


def good() -> list[Event]:
    return [
        invoke(0, 1.0),
        outcome(0, 1.1, offset=0),
        {"f": "fault", "t": 1.5, "kind": "kill", "node": 1, "partitions": [0]},
        watermark(1, 1.6),
        invoke(1, 2.0, "quorum"),
        outcome(1, 2.1, offset=1),
        read("c", 2.2, RECORDS[0], RECORDS[1]),
        invoke(2, 3.0),
        outcome(2, 3.1, "info", error="TIMEOUT"),
        invoke(3, 4.0),
        outcome(3, 4.1, "fail", error="NOT_LEADER"),
        invoke(4, 5.0, "leader"),
        outcome(4, 5.1, offset=2),
        watermark(3, 8.0),
        answer(RECORDS[1], complete=False),
        final(*RECORDS),
        segment(1, 0, 2, ("node-1", "aa"), ("node-2", "aa")),
        segment(2, 2, -1),
        read("whole", 9.1, *RECORDS),
        {"f": "whole-session", "t": 9.2, "process": "whole"},
    ]


def categories(events: list[Event]) -> set[str]:
    lines = (json.dumps(event) for event in events)
    return {violation.category for violation in check(load(TOPIC, lines))}


def test_good_recording_passes() -> None:
    assert categories(good()) == set()


def ended(*records: tuple[int, str]) -> Callable[[list[Event]], None]:
    """Another end of the log, as every reader of the end saw it."""

    def change(events: list[Event]) -> None:
        for event in events:
            if event["f"] == "final" or event.get("process") == "whole":
                event["records"] = records

    return change


def added(event: Event) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        events.append(event)

    return change


def swap_numbers(events: list[Event]) -> None:
    events[0]["seq"], events[4]["seq"] = 1, 0


def send_late(events: list[Event]) -> None:
    events[0]["t"] = 2.5
    events[1]["t"] = 2.6


def skip_one(events: list[Event]) -> None:
    events[6]["records"] = [RECORDS[0], RECORDS[2]]


def fail_after_all(events: list[Event]) -> None:
    events[8]["type"] = "fail"


def give_less(events: list[Event]) -> None:
    events[-2]["records"] = RECORDS[:2]


def differ(events: list[Event]) -> None:
    events[16]["digests"] = [("node-1", "aa"), ("node-2", "bb")]


def overlap(events: list[Event]) -> None:
    events[17]["base_offset"] = 1


BAD: list[tuple[str, str, Callable[[list[Event]], None]]] = [
    ("lost", "lost", ended(*RECORDS[:1])),
    ("lost", "lost", ended((0, "p/0/1"), (1, "p/0/0"), (2, "p/0/2"))),
    ("unseen", "lost", give_less),
    ("duplicate", "duplicated", ended(*RECORDS, (3, "p/0/0"))),
    ("gap", "gaps", ended(RECORDS[0], RECORDS[1], (3, "p/0/2"))),
    ("skip", "gaps", skip_one),
    ("tiling", "gaps", overlap),
    ("order", "reordered", swap_numbers),
    ("realtime", "reordered", send_late),
    ("nonmonotonic", "reordered", added(read("c", 5.0, RECORDS[0]))),
    ("changed", "reordered", added(read("d", 5.0, (1, "p/0/2")))),
    ("replicas_differ", "reordered", differ),
    ("watermark_past_end", "reordered", added(watermark(4, 8.5))),
    ("watermark_went_back", "reordered", added(watermark(2, 8.5))),
    ("aborted", "aborted_reads", fail_after_all),
    ("phantom", "aborted_reads", ended(*RECORDS, (3, "?torn"))),
    ("query_missed", "wrong_answers", added(answer(RECORDS[1]))),
    ("query_wrong", "wrong_answers", added(answer(*RECORDS))),
    ("query_order", "wrong_answers", added(answer(RECORDS[1], RECORDS[2], RECORDS[1]))),
]


@pytest.mark.parametrize(("category", "column", "spoil"), BAD)
def test_bad_recording_is_caught(
    category: str, column: str, spoil: Callable[[list[Event]], None]
) -> None:
    events = good()
    spoil(events)
    assert category in categories(events)
    assert category in COLUMNS[column]


def test_every_category_has_a_bad_recording() -> None:
    assert {category for category, _, _ in BAD} == {each for of in COLUMNS.values() for each in of}


def test_losses_of_leader_acks_are_counted_apart() -> None:
    lines = [json.dumps(event) for event in good()]
    assert lost_by_leader_acks(load(TOPIC, lines)) == 1


def test_recovery_is_measured_from_the_fault_to_the_first_ack_sent_after_it() -> None:
    lines = [json.dumps(event) for event in good()]
    assert first_acks_ms(lines, "kill") == [pytest.approx(600.0)]
    assert first_acks_ms(lines, "pause") == []


def test_stalls_are_the_longest_time_without_an_ack() -> None:
    lines = [json.dumps(event) for event in good()]
    assert longest_stalls_ms(lines, "kill") == [pytest.approx(600.0)]
    assert longest_stalls_ms(lines, "kill", within_s=0.1) == [pytest.approx(100.0)]


def test_values_are_recognised_as_a_whole() -> None:
    assert id_of(value_of("all-1/0/7")) == "all-1/0/7"
    assert id_of(value_of("all-1/0/7")[:-1] + b"!").startswith("?")
    assert id_of(None).startswith("?")


def test_what_a_scenario_does_is_survived_by_each_way_to_store_its_topic() -> None:
    for name, scenario in SCENARIOS.items():
        assert scenario.stored_as and set(scenario.stored_as) <= set(STORAGE), name
    assert "memory" in SCENARIOS["kill_leader"].stored_as
    assert not {"memory"} & {*SCENARIOS["kill_all"].stored_as, *SCENARIOS["storm"].stored_as}
    assert SCENARIOS["flip_active"].stored_as == ("files",)


def test_last_line() -> None:
    ran = Report("a", acked=Counter({Acks.ALL: 7, Acks.QUORUM: 5}), recoveries_ms=[10.0, 500.0])
    ran.take_overs_ms = [2000.0, 4000.0, 2100.0]
    ran.categories["aborted"] = 2
    assert summary([ran, Report("b", skipped="no namespaces")]) == (
        "chaos: scenarios=1 skipped=1 acked_all=7 acked_quorum=5 lost=0 duplicated=0 gaps=0 "
        "reordered=0 aborted_reads=2 wrong_answers=0 answers_checked=0 lost_acks_leader=0 "
        "recovery_p99_ms=500 take_over_p50_ms=2100 take_over_max_ms=4000"
    )
    assert re.fullmatch(r"chaos:( \w+=\d+)+", summary([]))
