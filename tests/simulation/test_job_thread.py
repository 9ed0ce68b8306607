"""Programs that block in a simulated world: one at work at a time, killed where they wait; and the
file systems of jobs."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from icecore.errors import StorageError
from icecore.spark.runs.folder import JobFolder
from tests.simulation.job_files import HDFS, KINDS, LOCAL, OBJECTS, JobDisk, SimFiles
from tests.simulation.job_thread import JobThread, Waiting
from tests.simulation.loop import SimLoop
from tests.simulation.process import ProcessKilled, SimProcess


def run(body: Callable[[JobThread[Any]], Any], *, dies_after_s: float | None = None) -> Any:
    """Run a program in a process of its own: its result."""
    loop = SimLoop(1)

    async def main() -> Any:
        process = SimProcess("program", 1)
        task = process.spawn(JobThread(body).run())
        await asyncio.wait({task}, timeout=dies_after_s)
        process.kill("kill", loop.time())
        await asyncio.wait({task})
        return task.result()

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_what_it_waits_for_is_done_by_the_loop() -> None:
    def body(thread: JobThread[float]) -> float:
        loop: Any = thread.wait(now)
        thread.wait(lambda: asyncio.sleep(5.0))
        return thread.wait(now) - loop

    async def now() -> float:
        return asyncio.get_running_loop().time()

    assert run(body) == 5.0


def test_errors_arrive_where_it_waits_and_end_it() -> None:
    async def fail() -> None:
        raise StorageError("no")

    def body(thread: JobThread[None]) -> None:
        with pytest.raises(StorageError, match="no"):
            thread.wait(fail)
        raise StorageError("at last")

    with pytest.raises(StorageError, match="at last"):
        run(body)


def test_a_killed_program_waits_for_nothing_any_more() -> None:
    done: list[str] = []

    def body(thread: JobThread[None]) -> None:
        try:
            thread.wait(lambda: asyncio.sleep(10.0))
            done.append("slept")
        finally:
            with pytest.raises(ProcessKilled):
                thread.wait(lambda: asyncio.sleep(0.0))
            done.append("unwound")

    with pytest.raises(asyncio.CancelledError):
        run(body, dies_after_s=1.0)
    assert done == ["unwound"]


def test_methods_of_an_asyncio_object() -> None:
    class Inner:
        async def twice(self, number: int, *, plus: int = 0) -> int:
            return 2 * number + plus

    steps: list[str] = []

    async def step(name: str) -> None:
        steps.append(name)

    assert run(lambda thread: Waiting(thread, Inner(), step).twice(3, plus=1)) == 7
    assert steps == ["twice"]


# --- file systems -------------------------------------------------------------------------------


def on(disk: JobDisk, act: Callable[[SimFiles], Any]) -> Any:
    """The result of what a program does with a disk."""

    async def step(_: str) -> None:
        await asyncio.sleep(0.001)

    def body(thread: JobThread[Any]) -> Any:
        return act(SimFiles(disk, "out", thread, step, random.Random(1), lambda: 1_000))

    return run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_notes_are_written_once_and_folders_move_whole(kind: str) -> None:
    disk = JobDisk(kind)

    def act(files: SimFiles) -> None:
        folder = JobFolder(files)
        assert folder.write_json("notes/a.json", {"by": 1})
        assert not folder.write_json("notes/a.json", {"by": 2})
        assert folder.read_json("notes/a.json") == {"by": 1}
        files.create("aside/part/x", "xx")
        folder.try_move("aside", "place")
        assert [each.path for each in folder.files("place")] == ["part/x"]
        assert not folder.exists("aside/part")
        assert folder.names("notes") == ["a.json"]
        folder.copy("place/part/x", "copy")
        folder.delete("place")
        assert not folder.exists("place")

    on(disk, act)
    assert {"out/notes/a.json", "out/copy"} == {*disk.texts}


@pytest.mark.parametrize(("kind", "goes_over"), [(LOCAL, True), (HDFS, False), (OBJECTS, False)])
def test_a_local_file_moves_over_another_one(kind: str, goes_over: bool) -> None:
    disk = JobDisk(kind)
    disk.texts |= {"out/a": "a", "out/b": "b"}
    disk.written_ms |= {"out/a": 1, "out/b": 1}
    assert on(disk, lambda files: files.move("a", "b")) is goes_over
    assert disk.texts["out/b"] == ("a" if goes_over else "b")


def test_what_fails_and_what_is_only_said_to_fail() -> None:
    disk = JobDisk(HDFS, refused=1.0)
    with pytest.raises(StorageError, match="refuses"):
        on(disk, lambda files: files.create("a", "a"))
    assert not disk.texts
    disk.refused, disk.lost_answers = 0.0, 1.0
    with pytest.raises(StorageError, match="was lost"):
        on(disk, lambda files: files.create("a", "a"))
    assert disk.texts == {"out/a": "a"}
    assert disk.struck.total() == 2
