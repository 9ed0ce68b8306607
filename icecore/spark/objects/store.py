"""Opens objects in object storage from a Python process of Spark: driver or executor.

Such a process has neither the settings nor the libraries of Spark's JVM. It opens stores with what
pyarrow brings, and with the credentials of its own environment. That nodes or the JVM can open a
store does not mean that it can, so what is refused says why, and what to type.
"""

import os
import time
import urllib.parse
import warnings
from typing import Any, Final

import pyarrow as pa

from icecore.errors import ConfigurationError

_SCHEMES: Final = {"file": "file", "s3": "s3a", "gs": "gs"}
"""Spark's scheme for each store that nodes name."""
_S3: Final = ("s3", "s3a", "s3n")
_OTHERS: Final = ("gs", "gcs", "abfs", "abfss", "hdfs")
_CONNECT_S: Final = 5
_REQUEST_S: Final = 30
_ATTEMPTS: Final = 3
_REFUSED_S: Final = 60.0
"""For so long a store that refused is not asked again: each query and task would wait for it."""
ANYWAY: Final = (
    'Say tiered="nodes" to read all of it through nodes, or tiered="files-or-nodes" to do that '
    "whenever Spark can't reach the store"
)
_QUIET: Final = "say tiered=nodes to read through nodes without trying"
_REMEDIES: Final = {
    "file": "the folder has to be on every machine of Spark's, for the user who runs it there",
    "s3": "Python processes of Spark take AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and "
    "AWS_ENDPOINT_URL from their environment (on executors by spark.executorEnv.…), or the role of "
    "their machine; never from settings of s3a",
}
_OTHER_REMEDY: Final = (
    "Python processes of Spark take credentials from their environment, or the role of their "
    "machine; a prefix that Spark knows by another name is given by tier_url"
)


def spark_url(tier_url: str) -> str:
    """The prefix of the cluster as Spark names it.

    Raises:
        ConfigurationError: Nobody but the caller can know that.
    """
    parts = urllib.parse.urlsplit(tier_url)
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(
            f"the cluster keeps tiered segments in {tier_url or 'a store that it does not name'}; "
            "say by tier_url what Spark calls that, such as "
            f"abfss://container@account.dfs.core.windows.net/prefix. {ANYWAY}"
        )
    if parts.scheme == "file":
        tier_url = urllib.parse.unquote(tier_url)  # Hadoop does not, nodes do
    return tier_url.replace(parts.scheme, _SCHEMES[parts.scheme], 1).rstrip("/")


class SparkStore:
    """A prefix of an object store.

    Args:
        url: As Spark names it.

    Raises:
        ConfigurationError: It can't be opened, or refused a moment ago.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._scheme, _, rest = url.rpartition("://") if "://" in url else ("file", "", url)
        until_s, message = _refused.get(url, (0.0, ""))
        if time.monotonic() < until_s:
            raise ConfigurationError(message)
        try:
            self._files, self._prefix = _opened.get(url) or self._opened(rest)
        except (OSError, ValueError, ImportError) as error:
            raise self.refused(error) from error
        _opened[url] = self._files, self._prefix

    def _opened(self, rest: str) -> tuple[Any, str]:
        """Return a file system of pyarrow, None for the one of this machine, and the prefix in it.

        Args:
            rest: What follows the scheme.
        """
        if self._scheme == "file":
            return None, rest
        from pyarrow import fs

        if self._scheme in _S3:
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            files = fs.S3FileSystem(
                endpoint_override=endpoint,
                connect_timeout=_CONNECT_S,
                request_timeout=_REQUEST_S,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            )
            return files, rest
        if self._scheme in _OTHERS:
            found: tuple[Any, str] = fs.FileSystem.from_uri(self._url)
            return found
        raise ValueError(f"nobody knows the scheme {self._scheme}:// here")

    def open(self, key: str) -> pa.NativeFile:
        """Open an object, whose size is known then.

        Raises:
            FileNotFoundError: There is no such object, or no such folder.
            ConfigurationError: The store refuses.
        """
        path = f"{self._prefix}/{key}"
        try:
            if self._files is None:
                return pa.OSFile(path)
            return self._files.open_input_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.refused(error) from error

    def probe(self, key: str) -> None:
        """Read the last byte of an object.

        Raises:
            ConfigurationError: This process can't.
        """
        try:
            with self.open(key) as file:
                if size := file.size():
                    file.seek(size - 1)
                    file.read(1)
        except OSError as error:
            raise self.refused(error) from error

    def refused(self, error: Exception) -> ConfigurationError:
        """The error for a caller, which is also the answer for the next minute."""
        kind = "s3" if self._scheme in _S3 else self._scheme
        remedy = _REMEDIES.get(kind, _OTHER_REMEDY)
        text = " ".join(str(error).split()) or type(error).__name__
        message = (
            f"Spark's Python can't read tiered segments at {self._url}: {remedy}; {_QUIET}. "
            f"The library says: {text}"
        )
        _refused[self._url] = (time.monotonic() + _REFUSED_S, message)
        return ConfigurationError(message)


def warn_of_nodes(topic: str, error: Exception) -> None:
    """Say that records which lie in object storage come through nodes; a process says it once."""
    warnings.warn(f"{topic} is read through nodes: {error}", stacklevel=2)


_opened: dict[str, tuple[Any, str]] = {}
_refused: dict[str, tuple[float, str]] = {}
