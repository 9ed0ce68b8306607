"""Remember the steps of a job, planned and done, so that a run goes on where another was killed.

A step is planned in a file that is written once. Its result is made in a folder of which only this
run knows the name. Then the step is noted as done, in another file that is written once and says
which folder counts and what is in it; then that folder is moved to its place. Whoever finds a plan
without that note does the same step again: the plan says what it reads, so the result is the same.
Whoever finds a note and the folder that it names moves it. So nothing that a note names is ever
deleted, however many runs meet: of two that make the same step the one whose note came first has
made it, and the other one ends with an error. Where a store has no way to write a file only if
there is none (S3A), two within the same instant could both believe so.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from icecore.errors import ConfigurationError, ConflictError, StorageError, TopicRecreatedError
from icecore.spark.runs.folder import JobFolder

VERSION: Final = 1
FOLDER: Final = "_icecore"
"""Spark passes by what begins with an underscore."""
_JOB: Final = f"{FOLDER}/job.json"
_STEPS: Final = f"{FOLDER}/steps"
_STAGING: Final = f"{FOLDER}/staging"

_STAGING_MS: Final = 24 * 3600 * 1000

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

    def publish_all(self, done: Iterable[Step]) -> None:
        """Move what killed runs have noted and not moved.

        Raises:
            StorageError: It can't be moved.
        """
        there = {f"{_STAGING}/{name}" for name in self.folder.names(_STAGING)}
        for noted in done:
            if noted.get("staged") in there:
                self.publish(noted)

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
        return f"{_STAGING}/{self.folder.new_name()}"

    def finish(self, number: int, facts: Step, staged: str, places: Mapping[str, str]) -> Step:
        """Note a step as done, and move its result to its place: the note.

        Args:
            number: Of the step.
            facts: What is to be noted of it.
            staged: The folder with its result.
            places: Of each part of the result, where it belongs; "" is all of it.

        Raises:
            ConflictError: Another run has done it meanwhile; its result stays.
            StorageError: It can't be moved; the next run does so.
        """
        files = {
            target: [list(each) for each in self.folder.files(_part(staged, part))]
            for part, target in places.items()
        }
        noted = {**facts, "staged": staged, "places": dict(places), "files": files}
        try:
            self.note_done(number, noted)
        except ConflictError:
            self.folder.delete(staged)
            raise
        self.publish(noted)
        return noted

    def publish(self, noted: Step) -> None:
        """Move the result of a step that is noted as done to its place, or what is left of it.

        Raises:
            StorageError: It can't be moved.
        """
        for part, target in noted["places"].items():
            staged = _part(noted["staged"], part)
            wanted = {name: size for name, size, _ in noted["files"][target]}
            if wanted and not self.folder.exists(target):
                self.folder.try_move(staged, target)
            there = self._sizes(target)
            if lacking := sorted(wanted.items() - there.items()):  # a move was cut off: one by one
                for name, _ in lacking:
                    self.folder.copy(f"{staged}/{name}", f"{target}/{name}")
                there = self._sizes(target)
            for name, _ in sorted(wanted.items() - there.items()):
                raise StorageError(
                    f"{self.folder.under(target)}/{name} is not whole, and a copy of it failed: "
                    "start the job again"
                )
            for name in sorted(there.keys() - wanted.keys()):  # of a run without a note
                self.folder.delete(f"{target}/{name}")
        self.folder.delete(noted["staged"])

    def _sizes(self, folder: str) -> dict[str, int]:
        return {each.path: each.size_bytes for each in self.folder.files(folder)}

    def note_done(self, number: int, facts: Step) -> None:
        """From now on no run does this step again.

        Raises:
            ConflictError: Another run has done it, and otherwise.
        """
        name = f"{_STEPS}/{_file(number)}.done.json"
        self.folder.write_json(name, facts)
        if self.folder.read_json(name) != facts:
            raise ConflictError(
                f"another run writes to {self.folder.path}, and has done step {number}: wait for "
                "its end"
            )

    def clean(self) -> None:
        """Remove results that were given up: those of others that nobody has touched for a day."""
        for name in self.folder.names(_STAGING):
            if self.folder.idle_ms(f"{_STAGING}/{name}") > _STAGING_MS:
                self.folder.delete(f"{_STAGING}/{name}")
        self.folder.delete_empty(_STAGING)


def _part(staged: str, part: str) -> str:
    return f"{staged}/{part}" if part else staged


def _file(number: int) -> str:
    return f"{number:06}"
