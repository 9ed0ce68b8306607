"""A node goes from one coordinator to another: to the one that a standby names, else round."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, NotCoordinatorError, ThrottledError, UnavailableError
from icecore_node.link.coordinator_link import CoordinatorLink

AWAY = UnavailableError("nobody listens")


def link(addresses: str = "a:1,b:1, c:1") -> CoordinatorLink:
    return CoordinatorLink(
        cast(Any, SimpleNamespace(settings=SimpleNamespace(coordinator=addresses)))
    )


def named(address: str) -> IcecoreError:
    return NotCoordinatorError("this coordinator stands by", address=address)


def test_it_goes_round() -> None:
    one = link()
    for address in ("a:1", "b:1", "c:1", "a:1"):
        assert one.address == address
        one.turn_from(address, AWAY)


def test_many_calls_that_fail_at_once_turn_it_once() -> None:
    one = link()
    for _ in range(3):
        one.turn_from("a:1", AWAY)
    assert one.address == "b:1"


@pytest.mark.parametrize("active", ["c:1", "elsewhere:1"])
def test_it_follows_a_standby(active: str) -> None:
    one = link()
    one.turn_from("a:1", named(active))
    assert one.address == active


def test_when_the_named_one_is_dead_the_next_one_is_asked() -> None:
    """A standby names a dead coordinator as long as its session lasts; others may know better."""
    one = link()
    one.turn_from("a:1", AWAY)
    one.turn_from("b:1", named("a:1"))
    one.turn_from("a:1", AWAY)
    assert one.address == "c:1"


def test_standbys_that_name_each_other_hold_nobody_up() -> None:
    one = link()
    one.turn_from("a:1", named("b:1"))
    one.turn_from("b:1", named("a:1"))
    assert one.address == "b:1"
    one.turn_from("b:1", named("b:1"))
    assert one.address == "c:1"


async def test_a_refusal_of_the_active_one_turns_nobody() -> None:
    """It says to wait, and it is the coordinator all the same."""

    async def call(*_: object, **__: object) -> bytes:
        raise ThrottledError("later")

    one = link()
    one._context = cast(Any, SimpleNamespace(net=SimpleNamespace(call=call)))
    with pytest.raises(ThrottledError):
        await one.ask("/m", b"", 1)
    assert one.address == "a:1"
