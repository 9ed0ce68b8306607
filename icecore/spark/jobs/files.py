"""Small files and folders wherever Spark can write: a local disk, HDFS, an object store.

Spark's own file systems are asked, so a job needs no credentials but those of Spark.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.runs.folder import JobFile, JobFolder


def folder_of(spark: SparkSession, path: str) -> JobFolder:
    """The folder of a job. Raises ConfigurationError: Spark can't write there."""
    return JobFolder(SparkFiles(spark, path))


class SparkFiles:
    """``icecore.spark.runs.folder.Files`` where Spark can write.

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
        self._is_local = self.path.partition(":")[0] == "file"

    def exists(self, name: str) -> bool:
        """See ``Files``."""
        return bool(self._system.exists(self._at(name)))

    def names(self, name: str) -> list[str]:
        """See ``Files``. Another run may remove an empty folder at any moment."""
        try:
            found = self._system.listStatus(self._at(name))
        except Py4JError:
            if self.exists(name):
                raise
            return []
        return sorted(str(each.getPath().getName()) for each in found)

    def files(self, name: str) -> Iterator[JobFile]:
        """See ``Files``."""
        if not self.exists(name):
            return
        root = f"{self._system.makeQualified(self._at(name)).toString()}/"
        found = self._system.listFiles(self._at(name), True)
        while found.hasNext():
            each = found.next()
            path = str(each.getPath().toString()).removeprefix(root)
            yield JobFile(path, int(each.getLen()), int(each.getModificationTime()))

    def idle_ms(self, name: str) -> int:
        """See ``Files``. Another run may move or remove it at any moment."""
        try:
            whole = int(self._system.getFileStatus(self._at(name)).getModificationTime())
            newest = max((each.modified_ms for each in self.files(name)), default=whole)
        except Py4JError:
            if self.exists(name):
                raise
            return 0
        return int(time.time() * 1000) - newest

    def delete(self, name: str) -> None:
        """See ``Files``."""
        self._system.delete(self._at(name), True)

    def delete_empty(self, name: str) -> None:
        """See ``Files``."""
        with suppress(Py4JError):
            self._system.delete(self._at(name), False)

    def move(self, source: str, target: str) -> bool:
        """See ``Files``."""
        try:
            self._system.mkdirs(self._at(target).getParent())
            return bool(self._system.rename(self._at(source), self._at(target)))
        except Py4JError as error:
            raise StorageError(f"{self._at(source).toString()} stays: {_reason(error)}") from error

    def copy(self, source: str, target: str) -> str:
        """See ``Files``."""
        util, configuration = self._jvm.org.apache.hadoop.fs.FileUtil, self._system.getConf()
        at = [self._system, self._at(source), self._system, self._at(target)]
        try:
            is_done = util.copy(*at, False, True, configuration)
        except Py4JError as error:
            return _reason(error)
        return "" if is_done else "the file system refuses"

    def link(self, source: str, target: str) -> bool | None:
        """See ``Files``. A local file would be moved over another one."""
        if not self._is_local:
            return None
        to, of = (
            self._jvm.java.io.File(self._at(name).toUri().getPath()).toPath()
            for name in (target, source)
        )
        try:
            self._jvm.java.nio.file.Files.createLink(to, of)
        except Py4JError:
            return False if self.exists(target) else None
        return True

    def read(self, name: str) -> str:
        """See ``Files``."""
        stream = self._system.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, name: str, text: str) -> None:
        """See ``Files``."""
        stream = self._system.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def new_name(self) -> str:
        """See ``Files``."""
        return uuid4().hex

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)


def _reason(error: Exception) -> str:
    """The first line of what Java says."""
    cause = getattr(error, "java_exception", None)
    return str(cause.toString() if cause is not None else error).splitlines()[0]
