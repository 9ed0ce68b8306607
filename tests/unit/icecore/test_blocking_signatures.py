"""The blocking classes spell out what the asyncio ones take, so that tools and people see it."""

import dataclasses
import inspect
import typing
from typing import Any

import pytest

import icecore
from icecore import blocking, client
from icecore.client.conditions import SearchArguments
from icecore.topic_settings import TopicFields, TopicSettings

PORTS = {"net", "clock", "rng"}
"""For tests, which have a loop."""
NAMES = ["Producer", "Consumer", "Lookup", "Admin"]
BY_HAND = ["Producer", "Consumer"]
"""The others are generated."""


def parameters(function: Any) -> list[inspect.Parameter]:
    return [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(function).parameters.values()
        if each.name not in PORTS
    ]


def same_defaults(ours: list[inspect.Parameter], theirs: list[inspect.Parameter]) -> bool:
    return [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


@pytest.mark.parametrize("name", BY_HAND)
def test_blocking_classes_take_the_same(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(client, name)
    assert same_defaults(parameters(ours.__init__), parameters(theirs.__init__))
    for method, found in inspect.getmembers(theirs, inspect.isfunction):
        if method.startswith("_") or (name, method) in LOOP_ONLY:
            continue
        assert same_defaults(parameters(getattr(ours, method)), parameters(found)), method


LOOP_ONLY = {
    ("Consumer", "start"),
    ("Producer", "start"),
    ("Producer", "ready"),
    ("Producer", "send_wait"),
}
"""Blocking classes start when they are made, and ``send`` waits for room."""


@pytest.mark.parametrize("package", [blocking, client])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_public_takes_any_keyword(package: Any, name: str) -> None:
    cls = getattr(package, name)
    for method, found in inspect.getmembers(cls, inspect.isfunction):
        for each in inspect.signature(found).parameters.values():
            is_open = each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
            if not method.startswith("_") or method == "__init__":
                assert not is_open or each.annotation is not Any, (method, each)


def test_keywords_that_are_unpacked_are_those_of_one_place() -> None:
    assert list(typing.get_type_hints(TopicFields)) == [
        each.name for each in dataclasses.fields(TopicSettings)
    ]
    assert typing.get_type_hints(TopicFields) == typing.get_type_hints(TopicSettings)
    find = list(inspect.signature(client.Lookup.find).parameters)[1:]
    assert list(SearchArguments.__annotations__) == find


def test_the_package_lists_its_names() -> None:
    assert set(icecore.__all__) <= set(dir(icecore))
    assert all(getattr(icecore, name) is not None for name in icecore.__all__)
