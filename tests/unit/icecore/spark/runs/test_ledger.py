"""Steps of jobs on a disk: what counts is what the first note names, whoever else was at work."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from icecore.errors import ConflictError, StorageError
from icecore.spark.runs.commits import files_of
from icecore.spark.runs.folder import JobFile, JobFolder
from icecore.spark.runs.ledger import JobLedger, Step

DAY_S = 24 * 3600
PLACES = {"table": "table/step=000000", "bad": "bad/step=000000"}


class DiskFolder:
    """Does with a disk what ``JobFolder`` does with other file systems."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def new_name(self) -> str:
        return uuid4().hex

    def under(self, name: str) -> str:
        return f"{self.path}/{name}"

    def at(self, name: str) -> Path:
        return Path(self.under(name))

    def exists(self, name: str) -> bool:
        return self.at(name).exists()

    def names(self, name: str) -> list[str]:
        return sorted(each.name for each in self.at(name).glob("*"))

    def files(self, name: str) -> Iterator[JobFile]:
        for each in sorted(self.at(name).rglob("*")):
            if each.is_file():
                path = str(each.relative_to(self.at(name)))
                yield JobFile(path, each.stat().st_size, int(each.stat().st_mtime * 1000))

    def idle_ms(self, name: str) -> int:
        whole = int(self.at(name).stat().st_mtime * 1000)
        newest = max((each.modified_ms for each in self.files(name)), default=whole)
        return int(time.time() * 1000) - newest

    def delete(self, name: str) -> None:
        if self.at(name).is_file():
            self.at(name).unlink()
        else:
            shutil.rmtree(self.at(name), ignore_errors=True)

    def delete_empty(self, name: str) -> None:
        if self.exists(name) and not self.names(name):
            self.at(name).rmdir()

    def try_move(self, source: str, target: str) -> None:
        self.at(target).parent.mkdir(parents=True, exist_ok=True)
        if self.exists(source):
            self.at(source).rename(self.at(target))

    def copy(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise StorageError(f"{source} is gone")
        self.at(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.at(source), self.at(target))

    def read_json(self, name: str) -> Any:
        return json.loads(self.at(name).read_text())

    def write_json(self, name: str, value: object) -> bool:
        self.at(name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.at(name).open("x") as file:
                json.dump(value, file)
        except FileExistsError:
            return False
        return True


@pytest.fixture
def folder(tmp_path: Path) -> DiskFolder:
    return DiskFolder(tmp_path)


def ledger(folder: DiskFolder) -> JobLedger:
    """Another run of the same job."""
    return JobLedger(cast(JobFolder, folder), {"job": "export"})


def made(folder: DiskFolder, run: JobLedger, text: str) -> str:
    """Make a step, in the folder that only this run knows: its name."""
    staged = run.staging()
    for part in PLACES:
        path = folder.at(f"{staged}/{part}/kind=a/part-{text}.parquet")
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return staged


def texts(folder: DiskFolder, part: str = "table") -> list[str]:
    return [path.read_text() for path in folder.at(part).rglob("*.parquet")]


def test_a_step_that_is_noted_stays_whoever_finishes_it_later(folder: DiskFolder) -> None:
    first, second = ledger(folder), ledger(folder)
    staged, late = made(folder, first, "first"), made(folder, second, "second")
    first.finish(0, {"records": 1}, staged, PLACES)
    first.clean()
    assert folder.exists(late), "the other run is at work, and needs it"
    with pytest.raises(ConflictError, match="has done step 0: wait for its end"):
        second.finish(0, {"records": 1}, late, PLACES)
    second.clean()
    assert texts(folder) == texts(folder, "bad") == ["first"]
    assert not folder.exists("_icecore/staging")
    (noted,) = ledger(folder).done()
    assert [each.path for each in files_of(cast(JobFolder, folder), PLACES["table"], noted)] == [
        "kind=a/part-first.parquet"
    ]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_the_next_run_moves_what_was_noted(
    folder: DiskFolder, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the note and the moves, or after one of them; and two that do it at once."""
    run = ledger(folder)
    with monkeypatch.context() as patch:
        calls = iter(range(10))

        def dying(source: str, target: str) -> None:
            if next(calls) == moved:
                raise StorageError("killed")
            DiskFolder.try_move(folder, source, target)

        patch.setattr(folder, "try_move", dying)
        patch.setattr(run, "publish", _until_killed(run.publish))
        run.finish(0, {}, made(folder, run, "whole"), PLACES)
    others = [ledger(folder), ledger(folder)]
    notes = [each.done() for each in others]
    for each, noted in zip(others, notes, strict=True):
        each.publish_all(noted)
    assert texts(folder) == texts(folder, "bad") == ["whole"]
    ledger(folder).clean()
    assert not folder.exists("_icecore/staging")


def _until_killed(publish: Any) -> Any:
    def run(noted: Step) -> None:
        try:
            publish(noted)
        except StorageError as error:
            assert error.message == "killed"

    return run


def test_a_move_that_was_cut_off_is_finished_file_by_file(folder: DiskFolder) -> None:
    """As on S3A, where a folder is moved by copying its files: one is there, one in part."""
    run = ledger(folder)
    staged = made(folder, run, "x")
    for name in ("a", "b"):
        folder.at(f"{staged}/table/{name}.parquet").write_text(f"{name}{name}")
    noted: Step = {}

    def dying(source: str, target: str) -> None:
        folder.copy(f"{source}/a.parquet", f"{target}/a.parquet")
        folder.copy(f"{source}/b.parquet", f"{target}/b.parquet")
        folder.at(f"{target}/b.parquet").write_text("b")

    folder.try_move = dying  # type: ignore[method-assign]
    noted = run.finish(0, {}, staged, {"table": PLACES["table"]})
    assert sorted(texts(folder)) == ["aa", "bb", "x"]
    run.publish(noted)  # by somebody who has seen the note before
    assert sorted(texts(folder)) == ["aa", "bb", "x"]


def test_a_copy_that_failed_in_its_middle_is_not_taken_for_whole(folder: DiskFolder) -> None:
    """Something is at its place, and ``JobFolder.copy`` can't know that it is half of it."""
    run = ledger(folder)
    staged = made(folder, run, "whole")
    whole = f"{staged}/table/kind=a/part-whole.parquet"

    def cut_off(source: str, target: str) -> None:
        path = folder.at(f"{target}/kind=a/part-whole.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("wh")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "try_move", cut_off)
        patch.setattr(folder, "copy", lambda *_: None)
        with pytest.raises(StorageError, match=r"part-whole\.parquet is not whole"):
            run.finish(0, {}, staged, {"table": PLACES["table"]})
        assert folder.exists(whole), "the only whole one there is"
    others = ledger(folder)
    others.publish_all(others.done())
    assert texts(folder) == ["whole"]


def test_what_a_run_of_before_left_without_a_note_goes(folder: DiskFolder) -> None:
    """Runs of earlier versions moved first and noted then."""
    path = folder.at(f"{PLACES['table']}/kind=a/part-old.parquet")
    path.parent.mkdir(parents=True)
    path.write_text("old")
    run = ledger(folder)
    run.finish(0, {}, made(folder, run, "new"), PLACES)
    assert texts(folder) == ["new"]


def test_notes_of_before_are_read(folder: DiskFolder) -> None:
    old = {"end_offsets": {"0": 5}, "records": 5}
    path = folder.at(f"{PLACES['table']}/part-old.parquet")
    path.parent.mkdir(parents=True)
    path.write_text("old")
    folder.write_json("_icecore/steps/000000.done.json", old)
    run = ledger(folder)
    run.publish_all(run.done())
    assert run.done() == [old]
    assert [
        each.path for each in files_of(cast(JobFolder, folder), PLACES["table"], run.done()[0])
    ] == ["part-old.parquet"]
    assert texts(folder) == ["old"]


def test_results_of_others_go_when_they_are_older_than_a_day(folder: DiskFolder) -> None:
    run = ledger(folder)
    young, old = made(folder, ledger(folder), "young"), made(folder, ledger(folder), "old")
    for path in folder.at(old).rglob("*.parquet"):
        os.utime(path, (0, time.time() - DAY_S - 60))
    for path in folder.at(young).rglob("*.parquet"):
        os.utime(path, (0, time.time() - DAY_S + 600))
    run.clean()
    assert folder.exists(young)
    assert not folder.exists(old)


def test_equal_facts_are_noted_by_both(folder: DiskFolder) -> None:
    """Steps of backfill, which leaders recognise: it does not matter who did one."""
    for _ in range(2):
        ledger(folder).note_done(0, {"records": 5})
    with pytest.raises(ConflictError):
        ledger(folder).note_done(0, {"records": 6})
