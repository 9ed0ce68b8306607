"""The port of object stores: immutable objects under keys that are never reused.

Production stands in ``obstore_store.py`` (S3, GCS, Azure, a local folder, memory), the simulator
has a store whose listings come late and whose answers may lie. All pass one conformance suite.
Nothing here says that an object is *published*: only metadata does. An object that is there may be
left of an unfinished upload. So a reader knows from elsewhere what the object must be, and
compares.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from icecore.codec.batch import Buffer
from icecore.errors import InvalidRequestError, ObjectStoreBusyError, ObjectStoreError

__all__ = [
    "BucketMissingError",
    "ByteRange",
    "ObjectDeniedError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreBusyError",
    "ObjectStoreError",
    "ObjectStoreSetupError",
    "ObjectTooShortError",
    "RangeReader",
    "check_key",
    "check_length",
    "check_store",
]

KEY_CHARACTERS_MAX: Final = 512
PROBE_PREFIX: Final = "_icecore/probe"
PROBE_BYTES_MAX: Final = 1024
_KEY = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")

ByteRange: TypeAlias = tuple[int, int]
"""First position and exclusive end, in bytes."""


class ObjectExistsError(ObjectStoreError):
    """There is an object under this key. It may be our own, put by a request whose answer was lost:
    compare it."""


class ObjectMissingError(ObjectStoreError):
    """There is no object under this key, in a bucket that exists."""


class ObjectTooShortError(ObjectStoreError):
    """An object ends before the bytes that were asked for, or is not as long as what was put."""


class ObjectDeniedError(ObjectStoreError):
    """The credentials are wrong, have expired, or may not do this."""


class ObjectStoreSetupError(ObjectStoreError):
    """The bucket is missing, or belongs to another region or endpoint: an admin must change the
    settings. No object counts as missing because of it."""


class BucketMissingError(ObjectStoreSetupError):
    """The bucket or the folder itself is not there."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Key and size of an object, as the store reports them."""

    key: str
    size_bytes: int


class RangeReader(Protocol):
    """Parts of objects of one prefix of one bucket. Keys are relative to it. Loop only; nothing
    blocks.

    Every method, those of ``ObjectReader`` and ``ObjectStore`` included, may raise
    ObjectStoreBusyError (it was tried again for a while: try later), ObjectDeniedError,
    ObjectStoreSetupError, or ObjectStoreError for an unexpected failure; and InvalidRequestError
    for a key that no store would take.
    """

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of these ranges, each as long as it was asked for; neighbours in one request.

        Raises:
            ObjectMissingError: It is not there.
            ObjectTooShortError: It ends before.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return the key and size of an object. Raises ObjectMissingError."""
        ...


class ObjectReader(RangeReader, Protocol):
    """Objects of one prefix of one bucket, to read."""

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """A small object as it is stored, in one request.

        Raises:
            ObjectMissingError: It is not there.
            InvalidRequestError: It is longer than ``bytes_max``.
        """
        ...


class ObjectStore(ObjectReader, Protocol):
    """One prefix of one bucket, to write, list and sweep as well."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """Put a small object, which is there whole or not at all, and durable.

        Raises:
            ObjectExistsError: Something is there already, and stays as it is.
        """
        ...

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """Put a large object under a key that no other writer uses, and return its length in bytes.

        It appears when all pieces are there. Whether the key is free is looked up once, before the
        first piece: two writers at once would replace one another, so keys are never reused. An
        error of ``pieces`` ends the upload and is raised again.

        Raises:
            ObjectExistsError: Something is there already, and stays as it is.
            ObjectTooShortError: The store said that it has all and has not.
        """
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects below ``prefix``, a whole number of steps of the path, in no order. A listing may
        be older than the last put or delete."""
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; fine when there is none. Only the sweeper does this."""
        ...


def check_key(key: str) -> None:
    """Raise InvalidRequestError for a key that not every store keeps as it is."""
    parts = key.split("/")
    if len(key) > KEY_CHARACTERS_MAX or not _KEY.fullmatch(key) or {".", ".."} & {*parts}:
        raise InvalidRequestError(f"no key of an object: {key[:80]!r}")


def check_length(key: str, size_bytes: int, bytes_max: int) -> None:
    """Raise InvalidRequestError for an object that is longer than its reader expects."""
    if size_bytes > bytes_max:
        raise InvalidRequestError(f"{key} has {size_bytes} bytes, not ≤ {bytes_max}")


async def check_store(store: ObjectStore, probe_id: str) -> None:
    """Prove that a store can be written, listed, read and cleaned, and that it keeps what is there.

    Args:
        store: The store in the settings.
        probe_id: A name that no other caller uses, and this one always: a call that fails may leave
            its probe, and the next one removes it.

    Raises:
        ObjectStoreSetupError: It ignores conditional puts.
        ObjectStoreError: As the store says it, with what was tried when it failed.
    """
    key, content = f"{PROBE_PREFIX}/{probe_id}", probe_id.encode()
    other = b"another " + content
    await _put_probe(store, key, content)
    with _trying("write"):
        is_kept = await _is_refused(store, key, other)
    with _trying("read"):
        found = await store.get_whole(key, PROBE_BYTES_MAX)
    with _trying("list"):
        async for _ in store.list(PROBE_PREFIX):
            pass
    with _trying("delete"):
        await store.delete(key)
    if not is_kept or found == other:
        raise ObjectStoreSetupError(
            "this store ignores conditional puts (If-None-Match): two clusters could overwrite "
            "each other; use a store that has them"
        )
    if found != content:
        raise ObjectStoreError("can't read objects: it returns other bytes than were put")


async def _put_probe(store: ObjectStore, key: str, content: bytes) -> None:
    """Put it in the place of one that was left."""
    with _trying("write"):
        if not await _is_refused(store, key, content):
            return
    with _trying("delete"):
        await store.delete(key)
    with _trying("write"):
        await store.put_if_absent(key, content)


async def _is_refused(store: ObjectStore, key: str, content: bytes) -> bool:
    """Put it. Return whether the store kept what was there instead."""
    try:
        await store.put_if_absent(key, content)
    except ObjectExistsError:
        return True
    return False


@contextmanager
def _trying(step: str) -> Iterator[None]:
    """Errors of the store say what was tried."""
    try:
        yield
    except (ObjectStoreError, ObjectStoreBusyError) as error:
        raise type(error)(f"can't {step} objects: {error.message}", **error.metadata) from error
