"""The history of a run as JSON lines, one per event: written while it happens, judged afterwards.

A record's value is a short id, ``producer/partition/number``, plus filler that follows from it: the
history holds the id, and whatever differs from its id's value as a whole. ``load`` is pure: lines
in, ``History`` out.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

from icecore.codec.selection import Selection
from icecore.model import Acks
from tests.simulation.history import (
    Answer,
    History,
    Outcome,
    Partition,
    Produce,
    Read,
    SegmentSeen,
    WatermarkSeen,
)

VALUE_BYTES = 150
OUTCOMES = {"ok": Outcome.OK, "fail": Outcome.FAIL, "info": Outcome.UNKNOWN}


def value_of(value_id: str) -> bytes:
    """The bytes that are sent for an id."""
    head = value_id.encode() + b"|"
    return head + (head * (VALUE_BYTES // len(head) + 1))[: VALUE_BYTES - len(head)]


def id_of(value: bytes | None) -> str:
    """The id of a value that was read; a value that nobody made is its own id."""
    text = (value or b"").decode("latin-1")
    value_id = text.partition("|")[0]
    return value_id if value_of(value_id) == value else f"?{text}"


class Recorder:
    """Writes lines; times are seconds of the system's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", buffering=1 << 16)

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def write(self, f: str, **fields: object) -> None:
        """One event of kind ``f``."""
        line = json.dumps({"f": f, "t": round(monotonic(), 6), **fields}, separators=(",", ":"))
        self._file.write(line + "\n")

    def read(
        self, process: str, partition: int, records: Iterable[tuple[int, bytes | None]]
    ) -> None:
        """Records that a reader was given, in the order in which it was."""
        found = [(offset, id_of(value)) for offset, value in records]
        if found:
            self.write("read", process=process, partition=partition, records=found)

    def answer(
        self,
        partition: int,
        selection: Selection,
        end_offset: int,
        records: Iterable[tuple[int, bytes | None]],
        *,
        is_complete: bool,
    ) -> None:
        """Write which records below an offset were found to fulfil these conditions."""
        self.write(
            "answer",
            partition=partition,
            keys=sorted(key.decode() for key in selection.keys),
            tags_any=sorted(selection.tags_any),
            tags_all=sorted(selection.tags_all),
            tags_none=sorted(selection.tags_none),
            end_offset=end_offset,
            complete=is_complete,
            records=[(offset, id_of(value)) for offset, value in records],
        )

    def final(self, history: History) -> None:
        """Write the records and segments that the observer found at the end."""
        for (_, partition), records in history.final.items():
            found = [(offset, id_of(value)) for offset, value in records]
            start = history.log_start.get((_, partition), 0)
            self.write("final", partition=partition, log_start=start, records=found)
        for segment in history.segments:
            self.write(
                "segment-observed",
                segment_id=segment.segment_id,
                partition=segment.partition[1],
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                digests=[(name, digest.hex()) for name, digest in segment.digests],
            )


def load(topic: str, lines: Iterable[str]) -> History:
    """The history that the lines tell. Lines of other kinds, such as faults, are passed over."""
    history = History()
    pending: dict[str, Produce] = {}
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        partition: Partition = (topic, event.get("partition", -1))
        match event["f"], event.get("type"):
            case "produce", "invoke":
                produce = Produce(
                    event["process"],
                    event["seq"],
                    partition,
                    event["value"].encode(),
                    Acks[event["acks"].upper()],
                    event["t"],
                )
                history.produces.append(produce)
                pending[event["value"]] = produce
            case "produce", str(outcome):
                produce = pending.pop(event["value"])
                produce.outcome = OUTCOMES[outcome]
                produce.ended_s = event["t"]
                produce.offset = event.get("offset", -1)
            case "read", _:
                history.reads += [
                    Read(event["process"], partition, offset, value.encode(), event["t"])
                    for offset, value in event["records"]
                ]
            case "watermark", _:
                seen = WatermarkSeen(event["process"], partition, event["offset"], event["t"])
                history.watermarks.append(seen)
            case "answer", _:
                history.answers.append(_answer(partition, event))
            case "final", _:
                history.log_start[partition] = event["log_start"]
                history.final[partition] = _records(event["records"])
            case "segment-observed", _:
                digests = tuple((name, bytes.fromhex(digest)) for name, digest in event["digests"])
                ends = (event["base_offset"], event["end_offset"])
                seen_ = SegmentSeen(event["segment_id"], partition, *ends, digests)
                history.segments.append(seen_)
            case "whole-session", _:
                history.whole_sessions.add(event["process"])
    return history


def _answer(partition: Partition, event: dict[str, Any]) -> Answer:
    selection = Selection(
        keys=frozenset(key.encode() for key in event["keys"]),
        tags_any=frozenset(event["tags_any"]),
        tags_all=frozenset(event["tags_all"]),
        tags_none=frozenset(event["tags_none"]),
    )
    return Answer(
        node="lookup",
        partition=partition,
        selection=selection,
        searched=(0, event["end_offset"]),
        is_complete=event["complete"],
        indexed_through_offset=event["end_offset"],
        records=tuple(_records(event["records"])),
        at_s=event["t"],
    )


def _records(pairs: Sequence[tuple[int, str]]) -> list[tuple[int, bytes]]:
    return [(offset, value.encode()) for offset, value in pairs]


def first_acks_ms(lines: Iterable[str], fault: str) -> list[float]:
    """From each fault of this kind, per partition, until the first ack of a record sent later.

    Milliseconds; ``acks=leader`` does not count. A partition that had none before the next such
    fault is left out: it is found by waiting for writes, which scenarios do.
    """
    waiting: dict[int, float] = {}
    began: dict[str, float] = {}
    found: list[float] = []
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if event["f"] == "fault" and event["kind"] == fault:
            waiting = dict.fromkeys(event["partitions"], event["t"])
        elif event["f"] == "produce" and event["type"] == "invoke":
            if event["acks"] != "leader":
                began[event["value"]] = event["t"]
        elif event["f"] == "produce":
            began_s = began.pop(event["value"], 0.0)
            since = waiting.get(event["partition"])
            if since is not None and event["type"] == "ok" and began_s >= since:
                found.append((event["t"] - since) * 1000)
                del waiting[event["partition"]]
    return found


def longest_stalls_ms(lines: Iterable[str], fault: str, within_s: float = 5.0) -> list[float]:
    """Per fault of this kind and partition, the longest time without an ack soon after it.

    Milliseconds; ``acks=leader`` does not count. Producers send every 100 ms, so that is the least.
    """
    ignored: set[str] = set()
    times: dict[int, list[float]] = {}
    faults: list[tuple[float, list[int]]] = []
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if event["f"] == "fault" and event["kind"] == fault:
            faults.append((event["t"], event["partitions"]))
        elif event["f"] == "produce" and event["type"] == "invoke":
            if event["acks"] == "leader":
                ignored.add(event["value"])
        elif event["f"] == "produce" and event["type"] == "ok" and event["value"] not in ignored:
            times.setdefault(event["partition"], []).append(event["t"])
    found: list[float] = []
    for at_s, partitions in faults:
        for partition in partitions:
            window = [t for t in times.get(partition, []) if at_s <= t <= at_s + within_s]
            gaps = [after - before for before, after in pairwise([at_s, *window])]
            found.append(max(gaps, default=within_s) * 1000)
    return found
