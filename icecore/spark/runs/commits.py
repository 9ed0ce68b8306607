"""A log of commits over the steps of a job, so that others see whole steps and nothing else.

It names the files of steps that are done, and is derived from the ledger: a run first commits what
an earlier one did not come to. Each commit keeps the number of its step, so it happens once.
"""

from collections.abc import Sequence
from typing import Protocol

from icecore.spark.runs.folder import JobFile, JobFolder
from icecore.spark.runs.ledger import Step


class CommitLog(Protocol):
    """The log of a table."""

    def last(self) -> int | None:
        """The number of the step that was committed last; None = there is no commit yet.

        Raises:
            StorageError: The log can't be read.
        """

    def commit(self, number: int, files: Sequence[JobFile]) -> None:
        """Add the files of a step.

        Raises:
            StorageError: The log can't be written, or somebody else has committed meanwhile.
        """


def bring_up(log: CommitLog, folder: JobFolder, table: str, done: Sequence[Step]) -> int:
    """Commit each step that is done and not in the log yet: how many those were.

    Args:
        log: Of the table.
        folder: Of the job.
        table: The name of the table's folder in it.
        done: Notes of the steps that are done.

    Raises:
        StorageError: The log can't be read or written.
    """
    known = log.last()
    first = 0 if known is None else known + 1
    for number in range(first, len(done)):
        log.commit(number, files_of(folder, f"{table}/{step_name(number)}", done[number]))
    return len(done) - first


def step_name(number: int) -> str:
    """The folder of a step in its table."""
    return f"step={number:06}"


def files_of(folder: JobFolder, place: str, noted: Step) -> list[JobFile]:
    """The files of a step: those that its note names, or in notes of before, all that are there."""
    if "files" not in noted:
        return list(folder.files(place))
    return [JobFile(*each) for each in noted["files"][place]]
