"""Topics as Spark DataFrames: batch and streaming reads and writes, in pure Python.

``spark.read.format("icecore")`` needs no call, because Spark finds the package ``pyspark_icecore``
by its name; ``read`` here is the shorter way. Needs the extra ``spark``: without it the first name
that is used says so. docs/spark.md says what it offers and promises.
"""

from typing import Any

from icecore.extras import MissingExtraError, explained

_missing: MissingExtraError | None = None
try:
    with explained("spark"):
        from icecore.spark.held import hold
        from icecore.spark.session import read, register, session
        from icecore.spark.source import IcecoreDataSource
except MissingExtraError as error:  # not raised here: `-m icecore.spark.jobs` says it in one line
    _missing = error

__all__ = ["IcecoreDataSource", "hold", "read", "register", "session"]


def __getattr__(name: str) -> Any:
    if _missing is not None and name in __all__:
        raise MissingExtraError(str(_missing), name=_missing.name)
    raise AttributeError(f"module icecore.spark has no attribute {name!r}")
