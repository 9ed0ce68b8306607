"""Tells how far Spark has come while a step is made."""

import threading
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession

from icecore.spark.runs.report import Report

WATCH_S: Final = 5.0


class Watch:
    """Notes how many tasks are done, for as long as a ``with`` lasts.

    Args:
        spark: Whose tasks.
        report: Where to note it.
        what: Is being done.
    """

    def __init__(self, spark: SparkSession, report: Report, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._report = report
        self._what = what
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._report.note(self._what)
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(WATCH_S):
            stages = [
                self._tracker.getStageInfo(each) for each in self._tracker.getActiveStageIds()
            ]
            known = [each for each in stages if each is not None]
            done = sum(each.numCompletedTasks for each in known)
            total = sum(each.numTasks for each in known)
            if total:
                self._report.note(f"{self._what}: {done} of {total} tasks of this stage")
