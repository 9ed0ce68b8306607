"""The error of a write that is run again and is not the same."""

from icecore.errors import IcecoreError


class SparkTaskChangedError(IcecoreError):
    """A write that is run again has other rows than the first time, or has divided them
    otherwise."""

    reason = "SPARK_TASK_CHANGED"
