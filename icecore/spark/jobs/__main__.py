"""``python -m icecore.spark.jobs JOB …``; spark-submit takes this file as it is.

Exit status: 0, 1 when the job failed, 2 when reconcile found something.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icecore.extras import as_one_line

with as_one_line("icecore.spark.jobs", "spark"):
    from pyspark.sql import SparkSession

    from icecore.errors import IcecoreError
    from icecore.spark.jobs import arguments
    from icecore.spark.jobs.package import package
    from icecore.spark.jobs.runner import perform
    from icecore.spark.runs.report import Report, json_schema
    from icecore.spark.sessions import register, session

STATUS: Final = {"done": 0, "planned": 0, "failed": 1, "differs": 2}
_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",  # so that the same values make the same dates anywhere
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what others read, too
    "spark.ui.showConsoleProgress": "false",
}


def run(given: Sequence[str]) -> int:
    """Exit status."""
    try:
        asked = arguments.parse(given)
        if asked.job == "schema":
            print(json.dumps(json_schema(), indent=1))
            return 0
        if asked.job == "package":
            print(*package(Path(asked.folder)), sep="\n")
            return 0
        conf = _DEFAULTS | arguments.settings(asked.conf)
    except IcecoreError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    report = Report(asked.job, asked.topic)
    spark: SparkSession | None = None
    try:
        spark = session(_master(asked.master), app=f"icecore {asked.job} {asked.topic}", conf=conf)
        register(spark)
        perform(spark, asked, report)
    except IcecoreError as error:
        report.failed(f"{error.reason}: {error.message}")
    finally:
        print(report.last_line(), flush=True)
        if spark is not None:
            spark.stop()
    return STATUS[report.metrics.status]


def _master(asked: str | None) -> str | None:
    """spark-submit has started a JVM and told it the master."""
    if asked is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return asked
    return "local[*]"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
