"""A file system for jobs that fails, loses answers, and does in one step what its kind does in one.

A ``JobDisk`` outlives processes; each run of a job has ``SimFiles`` of it. Kinds are those that
Spark writes to: a local disk moves a file over another one, and knows links; HDFS moves a folder
into one that is there; an object store moves file by file, and its folders are nothing but names.
"""

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from icecore.errors import StorageError
from icecore.spark.runs.folder import JobFile
from tests.simulation.job_thread import JobThread

LOCAL: Final = "local"
HDFS: Final = "hdfs"
OBJECTS: Final = "objects"
KINDS: Final = (LOCAL, HDFS, OBJECTS)


@dataclass
class JobDisk:
    """The files of a job, and the faults that wait for whoever asks next."""

    kind: str
    texts: dict[str, str] = field(default_factory=dict)
    """Files, by their whole path."""
    written_ms: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    """Those that were made, where a folder is more than a name."""
    refused: float = 0.0
    """Probability that an operation is not done."""
    lost_answers: float = 0.0
    """Probability that an operation that changes something is done, and said to have failed."""
    struck: Counter[str] = field(default_factory=Counter)

    def heal(self) -> None:
        """Nothing fails any more."""
        self.refused = self.lost_answers = 0.0

    def below(self, path: str) -> list[str]:
        """Files below a folder."""
        return sorted(each for each in self.texts if each.startswith(path + "/"))

    def has(self, path: str) -> bool:
        """Return whether there is such a file or folder."""
        return path in self.texts or path in self.folders or bool(self.below(path))

    def put(self, path: str, text: str, at_ms: int) -> None:
        """Write a file, and the folders above it."""
        self.texts[path], self.written_ms[path] = text, at_ms
        self.make_folders(path)

    def make_folders(self, path: str) -> None:
        """Make those above a path."""
        if self.kind != OBJECTS:
            parts = path.split("/")[:-1]
            self.folders |= {"/".join(parts[: number + 1]) for number in range(len(parts))}

    def drop(self, path: str) -> None:
        """A file, or a folder and all below it."""
        for each in [path, *self.below(path)]:
            self.texts.pop(each, None)
        self.folders = {
            each for each in self.folders if each != path and not each.startswith(path + "/")
        }

    def rename(self, source: str, target: str) -> None:
        """A file, or a folder and all below it, in one step."""
        for each in [source] if source in self.texts else self.below(source):
            moved = target + each.removeprefix(source)
            self.texts[moved], self.written_ms[moved] = self.texts.pop(each), self.written_ms[each]
            self.make_folders(moved)
        if source in self.folders:
            inside = {each for each in self.folders if f"{each}/".startswith(source + "/")}
            self.folders -= inside
            self.folders |= {target + each.removeprefix(source) for each in inside}


class SimFiles:
    """See ``icecore.spark.runs.folder.Files``.

    Args:
        disk: Where.
        path: The folder.
        thread: Of the program that asks.
        step: What happens before each step: time passes, or the process ends.
        rng: Of the names and of what fails.
        clock_ms: The time.
    """

    def __init__(
        self,
        disk: JobDisk,
        path: str,
        thread: JobThread[Any],
        step: Callable[[str], Coroutine[Any, Any, None]],
        rng: random.Random,
        clock_ms: Callable[[], int],
    ) -> None:
        self.path = path
        self._disk = disk
        self._thread = thread
        self._step = step
        self._rng = rng
        self.clock_ms = clock_ms

    def exists(self, name: str) -> bool:
        """See ``Files``."""
        self._turn()
        return self._disk.has(self._at(name))

    def names(self, name: str) -> list[str]:
        """See ``Files``."""
        self._turn()
        at = self._at(name) + "/"
        found = [*self._disk.texts, *self._disk.folders]
        return sorted(
            {each.removeprefix(at).partition("/")[0] for each in found if each.startswith(at)}
        )

    def files(self, name: str) -> Iterator[JobFile]:
        """See ``Files``."""
        if not self.exists(name):
            return
        self._turn()
        disk, at = self._disk, self._at(name)
        if not disk.has(at):
            raise StorageError(f"FileNotFoundException: {at} does not exist")
        for each in disk.below(at):
            path = each.removeprefix(at + "/")
            yield JobFile(path, len(disk.texts[each]), disk.written_ms[each])

    def idle_ms(self, name: str) -> int:
        """See ``Files``."""
        self._turn()
        now_ms = self.clock_ms()
        written = [self._disk.written_ms[each] for each in self._disk.below(self._at(name))]
        return now_ms - max(written, default=now_ms)

    def delete(self, name: str) -> None:
        """See ``Files``. Only HDFS removes a folder in one step."""
        at = self._at(name)
        if self._disk.kind != HDFS:
            for each in self._disk.below(at):
                self._turn("delete")
                self._disk.drop(each)
        self._turn("delete")
        self._disk.drop(at)
        self._answer()

    def delete_empty(self, name: str) -> None:
        """See ``Files``."""
        at = self._at(name)
        try:
            self._turn()
        except StorageError:
            return
        if not [each for each in (*self._disk.texts, *self._disk.folders) if _in(each, at)]:
            self._disk.drop(at)

    def move(self, source: str, target: str) -> bool:
        """See ``Files``."""
        disk, of, to = self._disk, self._at(source), self._at(target)
        self._turn("move")
        disk.make_folders(to)
        self._turn("move")
        if not disk.has(of):
            return False
        is_file = of in disk.texts
        if disk.has(to):
            if is_file and disk.kind != LOCAL:
                return False
            if not is_file:
                to = f"{to}/{of.rpartition('/')[2]}"  # both move a folder into another one
        if disk.kind == OBJECTS:
            self._move_each(of, to)
        else:
            disk.rename(of, to)
        self._answer()
        return True

    def _move_each(self, of: str, to: str) -> None:
        disk = self._disk
        found = [of] if of in disk.texts else disk.below(of)
        for each in found:
            if each in disk.texts:
                disk.put(to + each.removeprefix(of), disk.texts[each], self.clock_ms())
            self._turn("move")
        for each in found:
            disk.drop(each)
            self._turn("move")

    def copy(self, source: str, target: str) -> str:
        """See ``Files``."""
        disk, of, to = self._disk, self._at(source), self._at(target)
        try:
            self._turn("copy")
            if of not in disk.texts:
                return "FileNotFoundException"
            text = disk.texts[of]
            if disk.kind != OBJECTS:
                disk.put(to, text[: len(text) // 2], self.clock_ms())
            self._turn("copy")
            disk.put(to, text, self.clock_ms())
            self._answer()
        except StorageError as error:
            return error.message
        return ""

    def link(self, source: str, target: str) -> bool | None:
        """See ``Files``."""
        disk, of, to = self._disk, self._at(source), self._at(target)
        if disk.kind != LOCAL:
            return None
        try:
            self._turn("link")
            if to in disk.texts:
                return False
            disk.put(to, disk.texts[of], self.clock_ms())
            self._answer()
        except StorageError:
            return False if self.exists(target) else None
        return True

    def read(self, name: str) -> str:
        """See ``Files``."""
        self._turn()
        at = self._at(name)
        if at not in self._disk.texts:
            raise StorageError(f"FileNotFoundException: {at} does not exist")
        return self._disk.texts[at]

    def create(self, name: str, text: str) -> None:
        """See ``Files``. An object is there when all of it was sent."""
        at = self._at(name)
        self._turn("create")
        if self._disk.kind != OBJECTS:
            self._disk.put(at, "", self.clock_ms())
            self._turn("create")
            self._disk.put(at, text[: len(text) // 2], self.clock_ms())
        self._turn("create")
        self._disk.put(at, text, self.clock_ms())
        self._answer()

    def new_name(self) -> str:
        """See ``Files``."""
        return f"{self._rng.getrandbits(64):016x}"

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    def _turn(self, call: str = "") -> None:
        """Time passes before each step of a call."""
        self._thread.wait(lambda: self._step(call))
        if self._rng.random() < self._disk.refused:
            self._disk.struck["files_refused"] += 1
            raise StorageError("simulated: the file system refuses")

    def _answer(self) -> None:
        if self._rng.random() < self._disk.lost_answers:
            self._disk.struck["files_lost_answers"] += 1
            raise StorageError("simulated: the answer of the file system was lost")


def _in(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")
