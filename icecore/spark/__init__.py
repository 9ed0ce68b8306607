"""Topics as Spark DataFrames: batch and streaming reads and writes, in pure Python.

``spark.read.format("icecore")`` needs no call, because Spark finds the package ``pyspark_icecore``
by its name; ``read`` here is the shorter way. Needs the extra ``spark``. docs/SPARK.md says what it
offers and promises.
"""

from icecore.spark.held import hold
from icecore.spark.session import read, register, session
from icecore.spark.source import IcecoreDataSource

__all__ = ["IcecoreDataSource", "hold", "read", "register", "session"]
