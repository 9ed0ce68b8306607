"""Which steps of a job are planned and done, so that a run goes on where another one was killed.

A step is planned in a file that is written once, then its result is made in a folder of its own and
moved to its place, then it is noted as done. Whoever finds a plan without that note does the same
step again: the plan says what it reads, so the result is the same. One run at a time is meant to
write to a folder. Two do the same step twice, or one of them ends with an error; only where a file
system moves files over others (a local disk) could two that plan within the same instant differ.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from icecore.errors import ConfigurationError, ConflictError, StorageError, TopicRecreatedError
from icecore.spark.jobs.files import JobFolder

VERSION: Final = 1
FOLDER: Final = "_icecore"
"""Spark passes by what begins with an underscore."""
_JOB: Final = f"{FOLDER}/job.json"
_STEPS: Final = f"{FOLDER}/steps"
_STAGING: Final = f"{FOLDER}/staging"

Step = dict[str, Any]


class JobLedger:
    """The steps of a job that writes to a folder.

    Args:
        folder: Where it writes.
        settings: What must not change from one run to the next.
    """

    def __init__(self, folder: JobFolder, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {"version": VERSION, **settings}
        self.is_new = not folder.exists(_JOB)

    def check(self) -> None:
        """Refuse a folder that belongs to another job.

        Raises:
            ConfigurationError: It is another job's, or holds something else.
            TopicRecreatedError: It is of a topic that was made again.
            StorageError: What it says of itself is damaged.
        """
        if self.is_new:
            there = [each for each in self.folder.names("") if each != FOLDER]
            if there:
                raise ConfigurationError(
                    f"{self.folder.path} holds {there[0]}, and is no result of a job: name a "
                    "folder that is empty or not there"
                )
            return
        found = self.folder.read_json(_JOB)
        differing = {
            name: found.get(name)
            for name in self.settings | found
            if found.get(name) != self.settings.get(name)
        }
        if list(differing) == ["topic_id"]:
            raise TopicRecreatedError(
                f"{self.folder.path} is of a topic {found.get('topic')} that was deleted and made "
                "again: name another folder"
            )
        if differing:
            was = ", ".join(f"{name}={value!r}" for name, value in sorted(differing.items()))
            raise ConfigurationError(
                f"{self.folder.path} was begun with {was}: go on with the same, or name another "
                "folder"
            )

    def kept(self, name: str) -> Any:
        """A setting as the first run noted it; None when this is the first one."""
        return None if self.is_new else self.folder.read_json(_JOB).get(name)

    def open(self) -> None:
        """Note what job this is. Raises what ``check`` does."""
        if self.is_new and self.folder.write_json(_JOB, self.settings):
            self.is_new = False
            return
        self.is_new = False
        self.check()

    def done(self) -> list[Step]:
        """The steps that are done, in their order.

        Raises:
            StorageError: One is missing between others.
        """
        names = [each for each in self.folder.names(_STEPS) if each.endswith(".done.json")]
        for number, name in enumerate(names):
            if name != f"{_file(number)}.done.json":
                raise StorageError(f"{self.folder.under(_STEPS)} lacks step {number}")
        return [self.folder.read_json(f"{_STEPS}/{name}") for name in names]

    def plan(self, number: int, wanted: Step) -> Step:
        """Plan a step, unless another run has: what the plan is."""
        name = f"{_STEPS}/{_file(number)}.plan.json"
        self.folder.write_json(name, wanted)
        return self.folder.read_json(name)

    def planned(self, number: int) -> Step | None:
        """The plan of a step, if there is one."""
        name = f"{_STEPS}/{_file(number)}.plan.json"
        return self.folder.read_json(name) if self.folder.exists(name) else None

    def staging(self) -> str:
        """A folder for results that are not finished; nobody else has it."""
        return f"{_STAGING}/{uuid4().hex}"

    def publish(self, staged: str, target: str) -> None:
        """Move a result to its place; what an earlier attempt left there goes."""
        self.folder.delete(target)
        self.folder.move(staged, target)

    def note_done(self, number: int, facts: Step) -> None:
        """From now on no run does this step again.

        Raises:
            ConflictError: Another run has done it, and otherwise.
        """
        name = f"{_STEPS}/{_file(number)}.done.json"
        if not self.folder.write_json(name, facts) and self.folder.read_json(name) != facts:
            raise ConflictError(f"another run writes to {self.folder.path}: wait for its end")

    def clean(self) -> None:
        """Remove what runs that were killed have left."""
        self.folder.delete(_STAGING)


def _file(number: int) -> str:
    return f"{number:06}"
