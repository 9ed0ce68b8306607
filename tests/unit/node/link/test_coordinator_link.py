"""Requests that are sent in one call get their own answers, or none. An outage is logged once."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InternalError, UnavailableError, WrongClusterError
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.link.coordinator_link import CoordinatorLink


class Coordinator:
    """Describes so many segments in each answer, whatever it is asked."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    async def call(self, address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        segments = [pb.DescribedCopy()] * self.answers
        return pb.DescribeTieredResponse(segments=segments).SerializeToString()


async def describe_two(coordinator: Coordinator) -> list[object]:
    """Ask for two segments in one call."""
    settings = SimpleNamespace(coordinator="c:1")
    context = SimpleNamespace(settings=settings, identity=Identity(cast(Any, 1)), net=coordinator)
    link = CoordinatorLink(cast(Any, context))
    asked = (link.describe_tiered(cast(Any, each)) for each in (1, 2))
    return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)


@pytest.mark.parametrize("answers", [0, 1, 3])
async def test_too_few_answers_are_none(answers: int) -> None:
    """An answer to another segment would say that a copy is not published."""
    for found in await describe_two(Coordinator(answers)):
        assert isinstance(found, InternalError)
        assert f"{answers} answers to 2 requests" in found.message


async def test_each_request_has_its_answer() -> None:
    assert await describe_two(Coordinator(2)) == [pb.DescribedCopy()] * 2


class Away:
    """Refuses each call with the next of some errors."""

    def __init__(self, *refusals: IcecoreError) -> None:
        self.refusals = list(refusals)

    async def call(self, *_: object, timeout_s: float) -> bytes:
        raise self.refusals.pop(0)


async def test_a_reason_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    old, gone = UnavailableError("the store is older"), UnavailableError("nobody listens")
    coordinator = Away(*[old] * 50, gone, gone, WrongClusterError("another cluster"))
    timing = SimpleNamespace(registration_retry_ms=0)
    settings = SimpleNamespace(coordinator="c:1", timing=timing)
    context = SimpleNamespace(settings=settings, identity=Identity(cast(Any, 1)), net=coordinator)
    heard = []

    async def note(error: IcecoreError) -> None:
        heard.append(error.message)

    with caplog.at_level(logging.WARNING), pytest.raises(WrongClusterError):
        await CoordinatorLink(cast(Any, context)).register(pb.RegisterRequest(), note)
    assert len(heard) == 52
    said = [each.getMessage() for each in caplog.records]
    assert [("older" in each, "nobody" in each) for each in said] == [(True, False), (False, True)]
