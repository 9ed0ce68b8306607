"""A driver process to be killed: two streaming queries over one topic, into a table and a topic.

    python -m tests.support.spark_pipeline BOOTSTRAP FOLDER RECORDS_PER_BATCH

Ends by itself when all that there was at its start is read, and says then what the table holds:
``values.json``. Checkpoints and the table are in the folder.
"""

import json
import sys
from pathlib import Path

from icecore import spark as icecore_spark

SOURCE, TARGET = "pipeline-from", "pipeline-to"


def main(bootstrap: str, folder: Path, records: str) -> None:
    spark = icecore_spark.session(
        "local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",  # docs/spark.md
        },
    )
    spark.sparkContext.setLogLevel("ERROR")

    def rows() -> object:
        reading = spark.readStream.format("icecore").options(topic=SOURCE, bootstrap=bootstrap)
        return reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=records).load()

    table = (
        rows()  # type: ignore[attr-defined]
        .selectExpr("cast(value as string) value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "to-table"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    topic = (
        rows()  # type: ignore[attr-defined]
        .select("key", "value")
        .writeStream.format("icecore")
        .options(topic=TARGET, bootstrap=bootstrap)
        .option("checkpointLocation", str(folder / "to-topic"))
        .trigger(availableNow=True)
        .start()
    )
    table.awaitTermination()
    topic.awaitTermination()
    # By Spark, which knows what of the files was committed.
    rows = spark.read.parquet(str(folder / "table")).collect()
    (folder / "values.json").write_text(json.dumps([row.value for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
