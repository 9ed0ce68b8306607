"""Does a job in a session that is there, and says how that went; for programs, too."""

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icecore.errors import IcecoreError
from icecore.spark.jobs.backfill import backfill
from icecore.spark.jobs.export import export
from icecore.spark.jobs.latest import latest
from icecore.spark.jobs.reconcile import reconcile
from icecore.spark.jobs.rewrite import rewrite
from icecore.spark.runs.report import Report

Job = Callable[[SparkSession, Namespace, Report], None]
JOBS: Final[Mapping[str, Job]] = {
    "latest": latest,
    "export": export,
    "reconcile": reconcile,
    "backfill": backfill,
    "rewrite": rewrite,
}
_OURS: Final = re.compile(r"icecore\.[\w.]+: ")
"""The last line of a Python stack that ends with an error of ours."""
_ERROR_MAX: Final = 2_000


def perform(spark: SparkSession, asked: Namespace, report: Report) -> None:
    """Do a job; its report says how that went."""
    try:
        JOBS[asked.job](spark, asked, report)
    except IcecoreError as error:
        report.failed(f"{error.reason}: {error.message}")
    except PySparkException as error:
        report.failed(f"SPARK: {cause_of(error)}")
    except Py4JError as error:  # of a file system, most often
        report.failed(f"JVM: {cause_of(error)}")


def cause_of(error: Exception) -> str:
    """Return the message of our code or Spark, without the stacks of two languages around it."""
    text = str(error)
    lines = [line.strip(" |+-") for line in text.splitlines()]
    ours = [line for line in lines if _OURS.match(line)]
    first = [line for line in lines if line] or [type(error).__name__]
    return (ours[-1] if ours else first[0])[:_ERROR_MAX]
