"""The work of one task, as Spark sends it to an executor."""

from pyspark.sql.datasource import InputPartition

from icecore.spark.plan import OffsetRange
from icecore.spark.ranges import RangeSource


class RangePartition(InputPartition):
    """One range and where it is read."""

    def __init__(self, source: RangeSource, wanted: OffsetRange) -> None:
        self.source = source
        self.wanted = wanted
