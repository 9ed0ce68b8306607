"""Small files and folders wherever Spark can write: a local disk, HDFS, an object store.

Spark's own file systems are asked, so a job needs no credentials but those of Spark.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icecore.errors import ConfigurationError, StorageError


class JobFile(NamedTuple):
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
        self._scheme = self.path.partition(":")[0]

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
        """All files below a folder of it; none when there is no such folder."""
        if not self.exists(name):
            return
        root = f"{self._system.makeQualified(self._at(name)).toString()}/"
        found = self._system.listFiles(self._at(name), True)
        while found.hasNext():
            each = found.next()
            path = str(each.getPath().toString()).removeprefix(root)
            yield JobFile(path, int(each.getLen()), int(each.getModificationTime()))

    def newest_ms(self, name: str) -> int:
        """Return when something below a folder was last written."""
        whole = int(self._system.getFileStatus(self._at(name)).getModificationTime())
        return max((each.modified_ms for each in self.files(name)), default=whole)

    def delete(self, name: str) -> None:
        """A file, or a folder and all that is in it; nothing when it is not there."""
        self._system.delete(self._at(name), True)

    def delete_empty(self, name: str) -> None:
        """A folder, unless something is in it."""
        with suppress(Py4JError):
            self._system.delete(self._at(name), False)

    def try_move(self, source: str, target: str) -> None:
        """Move a folder to where nothing is, unless somebody does the same meanwhile."""
        self._system.mkdirs(self._at(target).getParent())
        with suppress(Py4JError):  # it is gone: who looks what is there finds out
            self._system.rename(self._at(source), self._at(target))

    def copy(self, source: str, target: str) -> None:
        """Copy a file, unless it has come to its place meanwhile.

        Raises:
            StorageError: It is neither here nor there.
        """
        util, configuration = self._jvm.org.apache.hadoop.fs.FileUtil, self._system.getConf()
        at = [self._system, self._at(source), self._system, self._at(target)]
        try:
            is_done = util.copy(*at, False, True, configuration)
        except Py4JError as error:
            is_done, why = False, _reason(error)
        else:
            why = "the file system refuses"
        if not is_done and not self.exists(target):
            raise StorageError(
                f"{self.under(source)} could not be moved to {self.under(target)}: {why}"
            )

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
        is_ours = self._link(unfinished, name) if self._scheme == "file" else None
        if is_ours is None:
            is_ours = bool(self._system.rename(self._at(unfinished), self._at(name)))
        self.delete(unfinished)
        return is_ours

    def _link(self, source: str, target: str) -> bool | None:
        """Give a local file another name, because a local file would be moved over another one;
        False when the name is taken, None when the disk knows no such links."""
        to, of = (
            self._jvm.java.io.File(self._at(name).toUri().getPath()).toPath()
            for name in (target, source)
        )
        try:
            self._jvm.java.nio.file.Files.createLink(to, of)
        except Py4JError:
            return False if self.exists(target) else None
        return True

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.under(name))


def _reason(error: Exception) -> str:
    """The first line of what Java says."""
    cause = getattr(error, "java_exception", None)
    return str(cause.toString() if cause is not None else error).splitlines()[0]
