"""Topics as Spark DataFrames: batch and streaming reads and writes, in pure Python.

``spark.read.format("icecore")`` needs no call, because Spark finds the package ``pyspark_icecore``
by its name; ``read`` here is the shorter way. Needs the extra ``spark``: without it the first name
that is used says so. docs/spark.md says what it offers and promises. Names are loaded when first
used: Spark starts a process each to look for the source, to make it and to plan a read.
"""

import importlib
from typing import TYPE_CHECKING, Any

from icecore.extras import explained

if TYPE_CHECKING:
    from icecore.spark.held import hold
    from icecore.spark.sessions import read, register, session
    from icecore.spark.source import IcecoreDataSource

__all__ = ["IcecoreDataSource", "hold", "read", "register", "session"]

_HOMES = {
    "IcecoreDataSource": "icecore.spark.source",
    "hold": "icecore.spark.held",
    "read": "icecore.spark.sessions",
    "register": "icecore.spark.sessions",
    "session": "icecore.spark.sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module icecore.spark has no attribute {name!r}")
    with explained("spark"):
        return getattr(importlib.import_module(_HOMES[name]), name)
