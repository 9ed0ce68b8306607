"""Spark beside a soak: it reads a topic again and again, until its standard input ends.

    python -m benchmarks.soak.spark BOOTSTRAP TOPIC

Every other read is through nodes alone; the others take published segments from object storage.
The last line on stdout has the counts as JSON. Retention may take an object away from a query that
was planned minutes ago; such a query is counted, and read anew.
"""

import argparse
import json
import sys
import threading
from dataclasses import asdict, dataclass, field

from pyspark.errors import PySparkException

from icecore import spark as icecore_spark
from icecore.errors import OffsetOutOfRangeError
from icecore.spark.options import Tiered

COLUMNS = "partition,offset"
ERRORS_KEPT = 5


@dataclass(slots=True)
class SparkCounts:
    """Counts of what Spark has done."""

    reads: int = 0
    rows: int = 0
    overtaken: int = 0
    """Queries that retention overtook: what they were to read was gone, and they said so."""
    ended: int = 0
    """Queries that were ended by any other error."""
    first_errors: list[str] = field(default_factory=list)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    options = parser.parse_args()
    over = threading.Event()

    def follow() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=follow, daemon=True).start()
    session = icecore_spark.session("local[1]", app="soak")
    session.sparkContext.setLogLevel("ERROR")
    counts = SparkCounts()
    while not over.wait(1.0):
        ways: tuple[Tiered, Tiered] = ("nodes", "files-or-nodes")
        try:
            frame = icecore_spark.read(
                session,
                options.topic,
                bootstrap=options.bootstrap,
                tiered=ways[counts.reads % 2],
                columns=COLUMNS,
            )
            counts.rows += frame.count()
            counts.reads += 1
        except PySparkException as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            # A worker's traceback comes first, and what was wrong in its last lines.
            told = next((each for each in reversed(lines) if "icecore.errors." in each), lines[-1])
            if OffsetOutOfRangeError.__name__ in told:
                counts.overtaken += 1
                continue
            counts.ended += 1
            counts.first_errors = [*counts.first_errors, told[:300]][:ERRORS_KEPT]
    session.stop()
    print(json.dumps(asdict(counts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
