"""HDFS as an object store, through WebHDFS and fsspec: ``webhdfs://namenode:port/folder``.

A file of HDFS is seen as soon as it is created, half written. So each object is written under a
name of its own in ``_icecore/unfinished`` and renamed when it is whole: the NameNode does that at
once, and refuses where something is already. A node that dies in between leaves such a file there,
which is never read or listed.

The user is the one of ``HADOOP_USER_NAME``, else ``icecore``: WebHDFS without Kerberos believes it.
HDFS confirms a file when all its DataNodes have it in memory; with ``dfs.datanode.synconclose``,
when their disks have it. Requests block, so they are made on threads that do nothing else.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple
from urllib.parse import unquote, urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from icecore.codec.batch import Buffer
from icecore.errors import ConfigurationError, IcecoreError, OutOfSpaceError
from icecore_node.remote.store.object_store import (
    ByteRange,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStoreBusyError,
    ObjectStoreError,
    ObjectStoreSetupError,
    ObjectTooShortError,
    check_key,
    check_length,
)
from icecore_node.remote.store.obstore_store import PART_BYTES, StoreSettings, coalesced, cut

SCHEME: Final = "webhdfs"
UNFINISHED: Final = "_icecore/unfinished"
REQUESTS_AT_ONCE: Final = 8
_AGAIN: Final = (502, 503, 504)
_BACK_OFF_S: Final = 0.2
_USER: Final = "icecore"
_BUSY_TEXTS: Final = ("safe mode", "standby", "Retriable", "StandbyException")
_FULL_TEXTS: Final = ("quota", "could only be written to 0", "No space left")
_TEXT_CHARACTERS_MAX: Final = 200
_LIBRARY_ERRORS: Final = (OSError, RuntimeError, ValueError, KeyError)
"""All that the library raises when HDFS or the network is the cause; OSError has those of HTTP."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WebHdfsStore:
    """See ``ObjectStore``.

    Args:
        settings: Settings of the store. No request is made yet.

    Raises:
        ConfigurationError: The URL or a setting is wrong.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._root = root_of(settings)
        self._files = _opened(settings)
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, "webhdfs")

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore.put_if_absent``."""
        check_key(key)
        await self._run(key, self._put, key, bytes(data))

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """See ``ObjectStore.put_stream``."""
        with suppress(ObjectMissingError):
            await self.head(key)
            raise ObjectExistsError(f"{key} exists", key=key)
        file, length = await self._run(key, self._create), 0
        try:
            async for piece in pieces:
                length += await self._run(key, file.write, bytes(piece))
            await self._run(key, file.close)
            await self._run(key, self._publish, file.path, key, length)
        except BaseException:
            file.closed = True  # else its end would write what is left
            with suppress(IcecoreError):
                await self._run(key, self._files.rm, file.path)
            raise
        return length

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``ObjectStore.get_ranges``."""
        check_key(key)
        spans = coalesced(ranges)
        parts = await asyncio.gather(*(self._run(key, self._read, key, *span) for span in spans))
        return cut(spans, parts, ranges)

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectStore.get_whole``."""
        check_key(key)
        return await self._run(key, self._whole, key, bytes_max)

    async def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore.head``."""
        check_key(key)
        return ObjectInfo(key, await self._run(key, self._size, key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ``ObjectStore.list``."""
        if prefix:
            check_key(prefix)
        folders = [prefix]
        while folders:
            folder = folders.pop()
            for name, size in await self._run(folder, self._entries, folder):
                path = f"{folder}/{name}" if folder else name
                if size >= 0:
                    yield ObjectInfo(path, size)
                elif path != UNFINISHED:
                    folders.append(path)

    async def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        check_key(key)
        await self._run(key, self._files.rm, self._path(key))

    async def _run(self, key: str, function: Callable[[*Ts], T], *args: *Ts) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function, *args)
        except _LIBRARY_ERRORS as error:
            raise translated(error, key) from error

    # --- on a thread ----------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _create(self) -> Any:
        path = self._path(f"{UNFINISHED}/{uuid.uuid4().hex}")
        return self._files.open(path, "wb", block_size=PART_BYTES)

    def _put(self, key: str, data: bytes) -> None:
        file = self._create()
        try:
            file.write(data)
            file.close()
            self._publish(file.path, key, len(data))
        except BaseException:
            file.closed = True
            with suppress(*_LIBRARY_ERRORS):
                self._files.rm(file.path)
            raise

    def _publish(self, path: str, key: str, length: int) -> None:
        """Rename a whole file to its key, if no file has that name yet."""
        found = self._files.info(path)["size"]
        if found != length:
            raise ObjectTooShortError(f"{key} has {found} of {length} bytes that were put", key=key)
        target = self._path(key)
        if self._renamed(path, target):
            return
        # There is no folder yet, or there is such a file.
        self._call("MKDIRS", "put", target.rpartition("/")[0])
        if self._renamed(path, target):
            return
        try:
            self._files.info(target)
        except FileNotFoundError:
            raise ObjectStoreError(f"HDFS does not rename a file to {key}", key=key) from None
        raise ObjectExistsError(f"{key} exists", key=key)

    def _renamed(self, path: str, target: str) -> bool:
        return bool(self._call("RENAME", "put", path, destination=target).json()["boolean"])

    def _call(self, operation: str, method: str, path: str, **options: object) -> Any:
        """Call an operation of WebHDFS directly. The library has no method that returns the answer,
        or that reads a range in one request."""
        return self._files._call(operation, method=method, path=path, **options)

    def _read(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)
        try:
            answer = self._call("OPEN", "get", path, offset=start, length=end - start)
            data: bytes = answer.content
        except RuntimeError:
            data = b""  # an offset behind the end is an error like others
            if self._size(key) >= end:
                raise
        if len(data) != end - start:
            raise ObjectTooShortError(f"{key} ends at {start + len(data)}, not {end}", key=key)
        return data

    def _whole(self, key: str, bytes_max: int) -> bytes:
        """Read a whole object. One byte more is requested than it may have, to see whether it is
        longer."""
        path = self._path(key)
        try:
            data: bytes = self._call("OPEN", "get", path, offset=0, length=bytes_max + 1).content
        except RuntimeError:
            if self._size(key):  # of an empty file some versions have no first byte
                raise
            return b""
        if len(data) > bytes_max:
            check_length(key, self._size(key), bytes_max)
        return data

    def _size(self, key: str) -> int:
        info = self._files.info(self._path(key))
        if info["type"] != "file":
            raise FileNotFoundError(f"{key} is a folder")
        return int(info["size"])

    def _entries(self, folder: str) -> Sequence[tuple[str, int]]:
        """Return the names and sizes of a folder's entries; -1 for folders."""
        path = self._path(folder) if folder else self._root
        try:
            found = self._files.ls(path or "/", detail=True)
        except FileNotFoundError:
            return []
        return [
            (each["pathSuffix"], each["size"] if each["type"] == "file" else -1)
            for each in found
            if each["pathSuffix"]
        ]


def root_of(settings: StoreSettings) -> str:
    """The folder of a URL, without a slash at its end.

    Raises:
        ConfigurationError: There is no host or port, or a setting is wrong.
    """
    parts = urlsplit(settings.url)
    try:
        is_complete = bool(parts.hostname and parts.port)
    except ValueError:
        is_complete = False
    if not is_complete or "@" in parts.netloc:
        raise ConfigurationError(f"HDFS is webhdfs://namenode:9870/folder, not {settings.url!r}")
    if settings.region:
        raise ConfigurationError("the region is for s3://, not for HDFS")
    if urlsplit(settings.endpoint).scheme != "hdfs":
        raise ConfigurationError(
            "the tables of HDFS need tier_endpoint: hdfs://namenode:8020, which takes Hadoop's RPC"
        )
    return unquote(parts.path).rstrip("/")


def _opened(settings: StoreSettings) -> WebHDFS:
    parts = urlsplit(settings.url)
    user = os.environ.get("HADOOP_USER_NAME", _USER)
    files = WebHDFS(
        parts.hostname,
        port=parts.port,
        user=user,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    timeout_s = (settings.connect_timeout_ms / 1000, settings.request_timeout_ms / 1000)
    session: requests.Session = files.session
    again = Retry(
        settings.retries_max,
        backoff_factor=_BACK_OFF_S,
        status_forcelist=_AGAIN,
        allowed_methods=("GET",),
        raise_on_status=False,
    )
    pool = HTTPAdapter(pool_maxsize=REQUESTS_AT_ONCE, max_retries=again)
    session.mount("http://", pool)
    # The library sets no time limit, and a thread would wait for ever.
    session.request = partial(session.request, timeout=timeout_s)  # type: ignore[method-assign]
    return files


def translated(error: Exception, key: str) -> IcecoreError:
    """Return our error for one of the library; ``key`` is for people."""
    if isinstance(error, IcecoreError):
        return error
    text = " ".join(str(error).split())[:_TEXT_CHARACTERS_MAX]
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError(f"{key} is not there", key=key)
    if isinstance(error, PermissionError) or status in (401, 403):
        return ObjectDeniedError(
            f"HDFS refuses {key}: check HADOOP_USER_NAME and what that user may do ({text})"
        )
    if any(each in text for each in _FULL_TEXTS):
        return OutOfSpaceError(f"HDFS has no space for {key} ({text})")
    is_away = isinstance(error, requests.ConnectionError | requests.Timeout) or status >= 500
    if is_away or any(each in text for each in _BUSY_TEXTS):
        return ObjectStoreBusyError(
            f"HDFS can't be reached or fails for now; are host and port right? ({text})", key=key
        )
    if isinstance(error, requests.RequestException | KeyError) or status:
        return ObjectStoreSetupError(
            f"the endpoint does not take such requests: is it that of WebHDFS? ({text})"
        )
    return ObjectStoreError(f"{key}: {text}", key=key)
