"""One system at a time has the machine; the others are stopped or held."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

import pytest

from benchmarks.cluster import System
from benchmarks.harness import systems
from benchmarks.harness.systems import Systems
from benchmarks.peers.processes import Processes


class _Told:
    """A system that notes what happens to it."""

    warm_s = 0.0
    bootstrap = ""
    pids: ClassVar[dict[str, int]] = {}

    def __init__(self, told: list[str], name: str, nodes: int, *, can_hold: bool) -> None:
        self._told, self._can_hold = told, can_hold
        self.name, self.nodes = name, nodes

    def _note(self, what: str) -> None:
        self._told.append(f"{self.name} {what}")

    def __enter__(self) -> Self:
        self._note("starts")
        return self

    def __exit__(self, *_: object) -> None:
        self._note("stops")

    def lacks(self, case: object) -> str:
        return ""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def hold(self) -> bool:
        if self._can_hold:
            self._note("is held")
        return self._can_hold

    def go_on(self) -> None:
        self._note("goes on")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the events of all systems, in order."""
    told: list[str] = []

    def ours(name: str, folder: Path, nodes: int) -> System:
        return _Told(told, name, nodes, can_hold=False)

    def theirs(folder: Path) -> System:
        return _Told(told, "kafka", 3, can_hold=True)

    monkeypatch.setattr(systems, "Icecore", ours)
    monkeypatch.setitem(systems.PEERS, "kafka", theirs)
    return told


@pytest.fixture
def all_systems(tmp_path: Path, told: list[str]) -> Iterator[Systems]:
    with Systems(tmp_path, lambda system: told.append(f"{system.name} warms up")) as found:
        yield found


def _taken(told: list[str]) -> list[str]:
    taken, told[:] = list(told), []
    return taken


def test_one_system_at_a_time_has_the_machine(all_systems: Systems, told: list[str]) -> None:
    all_systems.get("icecore", 3)
    assert _taken(told) == ["icecore starts", "icecore warms up"]
    all_systems.get("kafka", 3)
    assert _taken(told) == ["icecore stops", "kafka starts", "kafka warms up"]
    all_systems.get("kafka", 3)
    assert _taken(told) == []
    all_systems.get("icecore", 3)
    assert _taken(told) == ["kafka is held", "icecore starts", "icecore warms up"]
    all_systems.get("icecore_memory", 3)
    assert _taken(told) == ["icecore stops", "icecore_memory starts", "icecore_memory warms up"]
    all_systems.get("kafka", 3)
    assert _taken(told) == ["icecore_memory stops", "kafka goes on"]


def test_ours_starts_anew_with_another_number_of_nodes(
    all_systems: Systems, told: list[str]
) -> None:
    first = all_systems.get("icecore", 1)
    assert all_systems.get("icecore", 1) is first
    second = all_systems.get("icecore", 3)
    assert second is not first and not all_systems.is_running(first)
    assert all_systems.is_running(second)


def test_what_is_held_can_be_woken_beside_the_others(all_systems: Systems, told: list[str]) -> None:
    kafka = all_systems.get("kafka", 3)
    all_systems.get("icecore", 3)
    _taken(told)
    all_systems.wake(kafka)
    all_systems.wake(kafka)
    assert _taken(told) == ["kafka goes on"]
    all_systems.get("icecore", 3)
    assert _taken(told) == ["kafka is held"]


def test_a_system_that_is_held_is_stopped_and_started_anew(
    all_systems: Systems, told: list[str]
) -> None:
    all_systems.get("kafka", 3)
    all_systems.get("icecore", 3)
    _taken(told)
    all_systems.drop("kafka")
    all_systems.get("kafka", 3)
    assert _taken(told) == ["kafka stops", "icecore stops", "kafka starts", "kafka warms up"]


def test_processes_that_are_held_use_no_processor_and_can_be_stopped(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("busy", [sys.executable, "-c", "while True: pass"])
    (pid,) = processes.pids.values()

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    processes.hold()
    while state() != "T":
        pass
    processes.go_on()
    while state() == "T":
        pass
    processes.hold()
    processes.stop()
    assert processes.pids == {}
