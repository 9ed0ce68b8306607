"""Metrics of a coordinator: asked of its loop, and honest when the loop does not answer."""

import asyncio
import time

import pytest

from icecore.v1 import admin_pb2 as pb
from icecore.v1 import common_pb2
from icecore_coordinator import metrics
from icecore_coordinator.metrics import CoordinatorPages

NODE = common_pb2.NodeInfo(node_id=1, state=common_pb2.NODE_STATE_DOWN)
CLUSTER = pb.DescribeClusterResponse(
    nodes=[pb.NodeDescription(node=NODE)],
    partitions=3,
    offline_partitions=2,
    recoveries=4,
    limits=[pb.LimitUse(name="nodes", used=250, most=1_000)],
    refused_streams=7,
)


async def test_the_cluster_in_numbers() -> None:
    pages = CoordinatorPages(lambda: CLUSTER, lambda: False, lambda: "").pages()
    text = (await asyncio.to_thread(pages.metrics)).decode()
    for line in (
        "icecore_cluster_offline_partitions 2.0",
        'icecore_cluster_nodes{state="down"} 1.0',
        'icecore_cluster_nodes{state="up"} 0.0',
        "icecore_coordinator_recoveries_total 4.0",
        "icecore_coordinator_refused_streams_total 7.0",
        'icecore_cluster_limit_used_ratio{limit="nodes"} 0.25',
    ):
        assert f"{line}\n" in text
    assert await asyncio.to_thread(pages.live) == ""


async def test_one_that_lost_its_place_is_neither() -> None:
    pages = CoordinatorPages(lambda: CLUSTER, lambda: True, lambda: "").pages()
    assert "another coordinator took over" in await asyncio.to_thread(pages.live)
    assert await asyncio.to_thread(pages.ready)


async def test_one_whose_metadata_are_suspended_is_alive_and_says_why_it_is_not_ready() -> None:
    pages = CoordinatorPages(lambda: CLUSTER, lambda: True, lambda: "an older copy").pages()
    assert await asyncio.to_thread(pages.live) == ""
    assert await asyncio.to_thread(pages.ready) == "an older copy"


async def test_one_that_stands_by_is_ready_and_says_so() -> None:
    pages = CoordinatorPages(lambda: None, lambda: False, lambda: "").pages()
    text = (await asyncio.to_thread(pages.metrics)).decode()
    assert "icecore_coordinator_active 0.0\n" in text
    assert "icecore_cluster_partitions" not in text
    assert await asyncio.to_thread(pages.ready) == ""
    assert await asyncio.to_thread(pages.role) == "standby"


async def test_one_without_etcd_is_alive_and_says_why_it_is_not_ready() -> None:
    away = "no member of etcd has answered"
    pages = CoordinatorPages(lambda: None, lambda: False, lambda: "", lambda: away).pages()
    assert "icecore_coordinator_store_up 0.0\n" in (await asyncio.to_thread(pages.metrics)).decode()
    assert await asyncio.to_thread(pages.live) == ""
    assert await asyncio.to_thread(pages.ready) == away


def hang() -> None:
    """As a loop that does not turn."""
    time.sleep(0.5)


async def test_a_loop_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_SOON_S", 0.05)
    monkeypatch.setattr(metrics, "_ANSWER_S", 0.05)
    pages = CoordinatorPages(lambda: CLUSTER, lambda: False, lambda: "").pages()

    def ask() -> tuple[str, bool]:
        try:
            pages.metrics()
        except TimeoutError:
            return pages.live(), True
        return pages.live(), False

    asked = asyncio.get_running_loop().run_in_executor(None, ask)
    hang()
    why, is_late = await asked
    assert is_late
    assert "the event loop has not turned" in why
