"""Object stores of the world, by URL, through obstore: S3, GCS, Azure, a local folder, memory.

``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, ``file:///folder`` and
``memory:///``. Credentials come from the environment, from instance metadata or from a role, as the
library finds them (``AWS_ACCESS_KEY_ID``, ``AWS_WEB_IDENTITY_TOKEN_FILE``, …), and it renews them.
It tries again by itself what may be tried again, with back-off.

Four things are not left to it. A missing bucket looks like a missing object in an answer without a
body, so what ``head`` does not find is asked for once more by GET. What a large upload has left
behind is compared with what was sent. A local folder is synced: the library does not do it, and
local copies of a segment go once it is here. And the library would make a folder that is not there:
one that was there is not mounted.
"""

import asyncio
import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import LocalStore, MemoryStore, from_url

from icecore.codec.batch import Buffer
from icecore.errors import ConfigurationError
from icecore_node.ports import Executor
from icecore_node.remote.store.object_store import (
    BucketMissingError,
    ByteRange,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectTooShortError,
    check_key,
    check_length,
)
from icecore_node.remote.store.store_errors import LIBRARY_ERRORS, translated

PART_BYTES: Final = 8 << 20
PARTS_AT_ONCE: Final = 4
"""Parts in flight per upload; with the size of a part this is the memory of one upload."""
REQUESTS_AT_ONCE: Final = 8
LOCAL_READS_AT_ONCE: Final = 8
"""Reads of a local folder at once: the library has a thread for each, and keeps some more."""
COALESCE_BYTES: Final = 64 << 10
"""Ranges with no more than this between them are one request."""
_SCHEMES: Final = ("s3", "gs", "az", "file", "memory")
_FIRST_BYTE: Final[ByteRange] = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Settings of an object store: where it is, time limits and retries."""

    url: str
    region: str = ""
    """Region of the bucket; empty = as the environment says."""
    endpoint: str = ""
    """``http(s)://host:port`` of a store that is not the provider's own; of HDFS, for tables,
    ``hdfs://host:port`` of the NameNode's RPC."""
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    retries_max: int = 5
    """Maximum number of retries of one request, with back-off; then the caller decides."""
    retry_ms_max: int = 60_000
    makes_folder: bool = True
    """Make a local folder that is not there. Else the store is away until the folder is back."""

    def options(self) -> dict[str, str]:
        """Return the options for libraries that name S3's as obstore does, such as
        ``deltalake``."""
        options = {"aws_conditional_put": "etag", "aws_checksum_algorithm": "sha256"}
        if self.region:
            options["aws_region"] = self.region
        if self.endpoint:
            options["aws_endpoint"] = self.endpoint
        return options if urlsplit(self.url).scheme == "s3" else {}

    @property
    def is_clear_text(self) -> bool:
        """Return whether the settings ask for an endpoint without TLS."""
        return self.endpoint.startswith("http://")


class ObstoreStore:
    """See ``ObjectStore``.

    Args:
        settings: Settings of the store.
        executor: Syncs a local folder.

    Raises:
        ConfigurationError: The URL or a setting is wrong; nothing was asked of any store.
    """

    def __init__(self, settings: StoreSettings, executor: Executor) -> None:
        self._settings = settings
        self._executor = executor
        self._folder = local_folder(settings.url)
        self._places = asyncio.Semaphore(LOCAL_READS_AT_ONCE)
        self._store: Any = None
        if self._folder is None or settings.makes_folder:
            self._store = _open(settings)

    async def _opened(self) -> Any:
        """Return the library's store, which would make a local folder that is not there.

        Raises:
            BucketMissingError: The folder is not there now.
        """
        if self._folder is not None:
            if not await self._executor.run(os.path.isdir, self._folder):
                raise BucketMissingError(f"the folder {self._folder} is not there: mount it")
            if self._store is None:
                self._store = _open(self._settings)
        return self._store

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore.put_if_absent``."""
        check_key(key)
        store = await self._opened()
        try:
            await obstore.put_async(store, key, bytes(data), mode="create", use_multipart=False)
        except LIBRARY_ERRORS as error:
            raise translated(error, key) from error
        await self._sync(key)

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """See ``ObjectStore.put_stream``."""
        try:
            await self.head(key)
        except ObjectMissingError:
            pass
        else:
            raise ObjectExistsError(f"{key} exists", key=key)
        store, sent = await self._opened(), _Counted(pieces)
        try:
            await obstore.put_async(
                store,
                key,
                sent.pieces(),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        except LIBRARY_ERRORS as error:
            if sent.failed:
                raise
            raise translated(error, key) from error
        await self._sync(key)
        found = await self.head(key)
        if found.size_bytes != sent.length_bytes:
            raise ObjectTooShortError(
                f"{key} has {found.size_bytes} bytes of the {sent.length_bytes} that were put",
                key=key,
            )
        return sent.length_bytes

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``ObjectStore.get_ranges``."""
        check_key(key)
        spans, parts = coalesced(ranges), list[bytes]()
        for at in range(0, len(spans), REQUESTS_AT_ONCE):
            some = spans[at : at + REQUESTS_AT_ONCE]
            parts += await asyncio.gather(*(self._get(key, span) for span in some))
        return cut(spans, parts, ranges)

    async def _get(self, key: str, span: ByteRange) -> bytes:
        (start, end), store = span, await self._opened()
        try:
            async with self._places if self._folder is not None else nullcontext():
                data = bytes(await obstore.get_range_async(store, key, start=start, end=end))
        except LIBRARY_ERRORS as error:
            raise translated(error, key) from error
        if len(data) != end - start:
            raise ObjectTooShortError(f"{key} ends at {start + len(data)}, not {end}", key=key)
        return data

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectStore.get_whole``. The length is known before the body is read."""
        check_key(key)
        store = await self._opened()
        try:
            found = await obstore.get_async(store, key)
            size_bytes: int = found.meta["size"]
            check_length(key, size_bytes, bytes_max)
            data = bytes(await found.bytes_async())
        except LIBRARY_ERRORS as error:
            raise translated(error, key) from error
        if len(data) != size_bytes:
            raise ObjectTooShortError(f"{key} ends at {len(data)}, not {size_bytes}", key=key)
        return data

    async def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore.head``."""
        check_key(key)
        store = await self._opened()
        try:
            found = await obstore.head_async(store, key)
        except LIBRARY_ERRORS as error:
            ours = translated(error, key)
            if isinstance(ours, ObjectMissingError):
                await self._blame(key)
            raise ours from error
        return ObjectInfo(key, found["size"])

    async def _blame(self, key: str) -> None:
        """Try a GET after a HEAD that found nothing, and raise its error if that is another one. An
        object that appears just now still counts as missing for this caller."""
        try:
            await self.get_ranges(key, [_FIRST_BYTE])
        except (ObjectMissingError, ObjectTooShortError):
            return

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ``ObjectStore.list``."""
        if prefix:
            check_key(prefix)
        store = await self._opened()
        try:
            async for part in obstore.list(store, prefix or None, chunk_size=1000):
                for each in part:
                    yield ObjectInfo(each["path"], each["size"])
        except LIBRARY_ERRORS as error:
            raise translated(error, prefix) from error

    async def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        check_key(key)
        store = await self._opened()
        try:
            await obstore.delete_async(store, key)
        except FileNotFoundError:
            return  # only a local folder says so
        except LIBRARY_ERRORS as error:
            raise translated(error, key) from error

    async def _sync(self, key: str) -> None:
        """Make an object of a local folder durable, with each folder on the way to it."""
        if self._folder is None:
            return
        try:
            await self._executor.run(sync_path, self._folder, key)
        except OSError as error:
            raise translated(error, key) from error


class _Counted:
    """Pieces of an upload, and the bytes sent so far."""

    def __init__(self, pieces: AsyncIterator[Buffer]) -> None:
        self._pieces = pieces
        self.length_bytes = 0
        self.failed = False
        """Whether the producer of the pieces failed, not the store."""

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                self.length_bytes += len(piece)
                yield bytes(piece)
        except LIBRARY_ERRORS:
            self.failed = True
            raise


def coalesced(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Return the spans to request for these ranges, ascending. The library would do the same, but
    it panics where an object is shorter than expected."""
    spans: list[ByteRange] = []
    for start, end in sorted(each for each in ranges if each[1] > each[0]):
        if spans and start - spans[-1][1] <= COALESCE_BYTES:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans


def cut(
    spans: Sequence[ByteRange], parts: Sequence[bytes], ranges: Sequence[ByteRange]
) -> list[bytes]:
    """Cut the ranges out of the spans that were read for them."""
    starts = [start for start, _ in spans]
    found = dict(zip(starts, parts, strict=True))
    return [_part(found, starts, each) for each in ranges]


def _part(found: Mapping[int, bytes], starts: Sequence[int], wanted: ByteRange) -> bytes:
    """Return a range out of the span that holds it."""
    start, end = wanted
    if end <= start:
        return b""
    first = starts[bisect_right(starts, start) - 1]
    data = found[first]
    return data if len(data) == end - start else data[start - first : end - first]


def _open(settings: StoreSettings) -> Any:
    scheme = urlsplit(settings.url).scheme
    if scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in (*_SCHEMES, "webhdfs"))
        raise ConfigurationError(f"no object store: {settings.url!r} begins with none of {known}")
    if "@" in urlsplit(settings.url).netloc:
        raise ConfigurationError("the URL of an object store holds no credentials")
    if (settings.region or settings.endpoint) and scheme != "s3":
        raise ConfigurationError(f"region and endpoint are for s3://, not {settings.url!r}")
    if scheme == "memory":
        return MemoryStore()
    folder = local_folder(settings.url)
    try:
        if folder is not None:
            return LocalStore(folder, mkdir=settings.makes_folder)
        return from_url(settings.url, **_arguments(settings))
    except LIBRARY_ERRORS as error:
        reason = translated(error, settings.url).message
        raise ConfigurationError(f"object store {settings.url!r}: {reason}") from error


def _arguments(settings: StoreSettings) -> Mapping[str, Any]:
    config = {**settings.options()}
    config.pop("aws_conditional_put", None)  # its default
    client = {
        "allow_http": settings.is_clear_text,
        "timeout": timedelta(milliseconds=settings.request_timeout_ms),
        "connect_timeout": timedelta(milliseconds=settings.connect_timeout_ms),
    }
    retry = {
        "max_retries": settings.retries_max,
        "retry_timeout": timedelta(milliseconds=settings.retry_ms_max),
    }
    return {"config": config, "client_options": client, "retry_config": retry}


def local_folder(url: str) -> Path | None:
    """Return the folder of a ``file://`` URL; None for any other URL."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    path = Path(unquote(parts.path))
    if parts.netloc or not path.is_absolute():
        raise ConfigurationError(f"a local folder is file:///absolute/path, not {url!r}")
    return path


def sync_path(folder: Path, key: str) -> None:
    """Make a file in a folder durable, with each folder on the way to it. Raises OSError."""
    path = folder / key
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == folder:
            return
        path = path.parent
