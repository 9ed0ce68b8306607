"""The tables of docs/design/evidence.md as data: each message between servers, field by field."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from icecore.v1 import coordinator_pb2, mirror_pb2, replication_pb2

PAGE: Final = Path(__file__).parents[2] / "docs" / "design" / "evidence.md"
ORDERS: Final = "…"
NODES: Final = "←"
"""All orders of the coordinator; all requests in which a node names itself."""
NOT_COMPARED: Final = ("nothing", "question", "below")
_QUOTED: Final = re.compile(r"`([^`]+)`")
_GUARD: Final = re.compile(r"`([\w.]+:[\w.]+)` by `(\w+::\w+)`")


@dataclass(frozen=True)
class Guard:
    """A function that refuses, and a test that fails without it."""

    function: str
    """End of a module's name, a colon, and a name in it."""
    test: str

    def __str__(self) -> str:
        return f"{self.function} by {self.test}"


@dataclass(frozen=True)
class EvidenceRow:
    """One line of a table."""

    messages: tuple[str, ...]
    fields: tuple[str, ...]
    compared_with: str
    when_they_differ: str
    rules: tuple[str, ...]
    guards: tuple[Guard, ...]
    mutants: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Return whether the receiver compares these fields with anything. Where it does not, the
        row says why after one of a few words."""
        word, _, why = self.compared_with.partition(": ")
        return word not in NOT_COMPARED or not why


def rows(text: str | None = None) -> list[EvidenceRow]:
    """All lines of all tables that have six columns."""
    lines = (PAGE.read_text() if text is None else text).splitlines()
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines if "|" in line]
    return [
        _row(each)
        for each in cells
        if len(each) == 6 and each[0] != "message" and "---" not in each
    ]


def _row(cells: list[str]) -> EvidenceRow:
    message, fields, compared_with, differ, rules, broken_by = cells
    is_group = message in (ORDERS, NODES)
    names = _orders_or_reports(message) if is_group else tuple(_QUOTED.findall(message))
    guards = tuple(Guard(*found) for found in _GUARD.findall(broken_by))
    others = _QUOTED.findall(_GUARD.sub("", broken_by))
    return EvidenceRow(
        messages=names,
        fields=tuple(_QUOTED.findall(fields)),
        compared_with=compared_with,
        when_they_differ=differ,
        rules=tuple(re.findall(r"R\d+", rules)),
        guards=guards,
        mutants=tuple(each for each in others if "::" not in each),
        tests=tuple(each for each in others if "::" in each),
    )


def _orders_or_reports(sign: str) -> tuple[str, ...]:
    service = "NodeService" if sign == ORDERS else "CoordinatorService"
    methods = coordinator_pb2.DESCRIPTOR.services_by_name[service].methods
    named = [each.input_type for each in methods if "node_id" in each.input_type.fields_by_name]
    return tuple(each.name for each in named)


def messages() -> dict[str, tuple[str, ...]]:
    """Fields of all messages between servers, at any depth, by name of the message."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(descriptor: Any) -> None:
        if descriptor.name in found:
            return
        found[descriptor.name] = tuple(each.name for each in descriptor.fields)
        for each in descriptor.fields:
            inner = each.message_type
            if inner is not None and not inner.GetOptions().map_entry:
                walk(inner)

    for module in (coordinator_pb2, mirror_pb2, replication_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                walk(method.input_type)
                walk(method.output_type)
    return found


def missing(found: list[EvidenceRow]) -> Iterator[str]:
    """Fields that are in no row."""
    named = {(message, field) for row in found for message in row.messages for field in row.fields}
    for message, fields in messages().items():
        for each in fields:
            if (message, each) not in named:
                yield f"{message}.{each} is in no row"


def strange(found: list[EvidenceRow]) -> Iterator[str]:
    """Messages and fields in rows that do not exist."""
    known = messages()
    for row in found:
        for message in row.messages:
            if message not in known:
                yield f"there is no message {message} between servers"
                continue
            is_group = len(row.messages) > 1
            for each in row.fields:
                if each not in known[message] and not is_group:
                    yield f"{message} has no field {each}"
        for each in row.fields:
            if not any(each in known.get(message, ()) for message in row.messages):
                yield f"{row.messages} have no field {each}"


def without_identity(text: str | None = None) -> list[tuple[tuple[str, ...], str]]:
    """Return messages that only an identity of peers could contradict, and the harm of each."""
    lines = (PAGE.read_text() if text is None else text).splitlines()
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines if "|" in line]
    found = [each for each in cells if len(each) == 2 and "---" not in each]
    return [(tuple(_QUOTED.findall(one)), harm) for one, harm in found if _QUOTED.findall(one)]
