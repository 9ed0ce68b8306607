"""Slots of one service are not those of another, nor one host's those of another one."""

import pytest

from icecore.errors import ThrottledError
from icecore.rpc.methods import ADMIN, DATA, NODE
from icecore.rpc.slots import Slots, host_of

FETCH, PRODUCE, FENCE = DATA["Fetch"], DATA["Produce"], NODE["Fence"]


async def test_a_flood_of_one_service_keeps_no_other_out() -> None:
    slots = Slots(4, 4)
    held = [slots.take(FETCH, host) for host in ("a", "a", "b", "b")]
    error = slots.why_not(PRODUCE, "c")
    assert error is not None and error.metadata["retry_after_ms"] == "50"
    assert slots.why_not(FENCE, "c") is None
    assert slots.why_not(ADMIN["CreateTopic"], "a") is None
    held[0].end()
    held[0].end()
    assert slots.why_not(FETCH, "a") is None
    slots.take(FETCH, "a")
    assert slots.why_not(FETCH, "c") is not None


async def test_a_host_has_half() -> None:
    slots = Slots(4, 4)
    for _ in range(2):
        slots.take(FETCH, "greedy")
    assert slots.why_not(FETCH, "greedy") is not None
    assert slots.why_not(FETCH, "modest") is None
    assert Slots(1, 1).why_not(FETCH, "only") is None


async def test_who_only_waits_leaves_his_slot_to_others() -> None:
    slots = Slots(2, 3)
    polls = []
    for host in ("a", "b", "c"):
        poll = slots.take(FETCH, host)
        poll.park()
        polls.append(poll)
    assert slots.why_not(FETCH, "a") is None
    late = slots.take(FETCH, "d")
    with pytest.raises(ThrottledError) as caught:
        late.park()
    assert caught.value.metadata["retry_after_ms"] == "1000"
    polls[0].end()
    late.park()
    await late.resume()
    late.end()
    for poll in polls[1:]:
        await poll.resume()
    assert slots.why_not(FETCH, "d") is not None, "they run again"
    for poll in polls:
        poll.end()
    assert slots.why_not(FETCH, "d") is None


def test_hosts() -> None:
    assert host_of("ipv4:10.0.0.1:4711") == "ipv4:10.0.0.1"
    assert host_of("ipv6:%5B::1%5D:4711") == "ipv6:%5B::1%5D"
