"""What makes ``spark.read.format("icecore")`` work without a call: Spark looks at every top-level
package named ``pyspark_*`` on the Python path for a class of this name."""

from icecore.spark import IcecoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
