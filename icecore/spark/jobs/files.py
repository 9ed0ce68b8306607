"""Small files and folders wherever Spark can write: a local disk, HDFS, an object store.

Spark's own file systems are asked, so a job needs no credentials but those of Spark.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icecore.errors import ConfigurationError, StorageError


@dataclass(frozen=True, slots=True)
class JobFile:
    """One that a folder, or one below it, has."""

    path: str
    """Below the folder."""
    size_bytes: int
    modified_ms: int


class JobFolder:
    """A folder that Spark can write to.

    Args:
        spark: A classic session; Spark Connect has no file systems to lend.
        path: With or without a scheme.

    Raises:
        ConfigurationError: Spark knows no such file system, or the session is of Spark Connect.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        try:
            self._jvm: Any = cast(Any, spark.sparkContext._jvm)
            configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        except PySparkException as error:
            raise ConfigurationError(
                "jobs need a classic Spark session: run them by spark-submit or with --master, "
                "not by Spark Connect"
            ) from error
        try:
            at = self._jvm.org.apache.hadoop.fs.Path(path)
            self._system = at.getFileSystem(configuration)
        except Exception as error:
            raise ConfigurationError(f"Spark can't write to {path}: {_reason(error)}") from error
        self.path = str(self._system.makeQualified(at).toString())

    def under(self, name: str) -> str:
        """The path of something in it."""
        return f"{self.path}/{name}"

    def exists(self, name: str) -> bool:
        """Return whether it has such a file or folder."""
        return bool(self._system.exists(self._at(name)))

    def names(self, name: str) -> list[str]:
        """Return the names of all entries of a subfolder; none when there is no such subfolder."""
        if not self.exists(name):
            return []
        return sorted(
            str(each.getPath().getName()) for each in self._system.listStatus(self._at(name))
        )

    def files(self, name: str) -> Iterator[JobFile]:
        """All files below a folder of it."""
        root = f"{self._system.makeQualified(self._at(name)).toString()}/"
        found = self._system.listFiles(self._at(name), True)
        while found.hasNext():
            each = found.next()
            path = str(each.getPath().toString()).removeprefix(root)
            yield JobFile(path, int(each.getLen()), int(each.getModificationTime()))

    def delete(self, name: str) -> None:
        """A file, or a folder and all that is in it; nothing when it is not there."""
        self._system.delete(self._at(name), True)

    def move(self, source: str, target: str) -> None:
        """Whole, and only to where nothing is.

        Raises:
            StorageError: The file system refuses.
        """
        self._system.mkdirs(self._at(target).getParent())
        if self.exists(target) or not self._system.rename(self._at(source), self._at(target)):
            raise StorageError(f"{self.under(source)} could not be moved to {self.under(target)}")

    def read_json(self, name: str) -> dict[str, Any]:
        """Raises StorageError: It is no JSON object."""
        stream = self._system.open(self._at(name))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StorageError(f"{self.under(name)} is damaged: it is no JSON object")
        return found

    def write_json(self, name: str, value: object) -> bool:
        """Write it whole or not at all; False when there is one already."""
        if self.exists(name):
            return False
        unfinished = f"{name}.{self._jvm.java.util.UUID.randomUUID().toString()}.tmp"
        stream = self._system.create(self._at(unfinished), True)
        try:
            stream.write(bytearray(json.dumps(value, indent=1).encode()))
        finally:
            stream.close()
        if self._system.rename(self._at(unfinished), self._at(name)):
            return True
        self.delete(unfinished)
        return False

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.under(name))


def _reason(error: Exception) -> str:
    """The first line of what Java says."""
    cause = getattr(error, "java_exception", None)
    return str(cause.toString() if cause is not None else error).splitlines()[0]
