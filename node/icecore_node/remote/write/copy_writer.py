"""Writing a copy into the object store. Each object has a key of its own, is hashed on its way, and
is read back as it is stored. The manifest comes last."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, TypeVarTuple

from icecore.errors import InvalidRequestError
from icecore.rpc.ports import Clock
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    StoredObject,
    TieredDamageError,
)
from icecore_node.remote.store.object_store import ObjectExistsError, ObjectStore

STEP_BYTES: Final = 32 << 20
"""Memory, in bytes, that one step of encoding or decoding may take."""
PART_BYTES: Final = 4 << 20
"""Bytes of an index file read at a time."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Throttle:
    """Limits the bytes per second of all uploads of a node together. Loop only."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    @property
    def is_on(self) -> bool:
        """Return whether there is a limit."""
        return self._bytes_per_s > 0

    async def spend(self, length_bytes: int) -> None:
        """Wait until these bytes are allowed. Time that passed unused before does not count."""
        if not self.is_on or not length_bytes:
            return
        now_ms = self._clock.monotonic_ms()
        self._free_ms = max(self._free_ms, now_ms) + 1000 * length_bytes / self._bytes_per_s
        await asyncio.sleep((self._free_ms - now_ms) / 1000)


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A copy that is stored and proved."""

    manifest: Manifest
    manifest_sha256: bytes
    length_bytes: int
    """Size of all its objects."""
    source_digests: tuple[bytes, ...] = ()
    """Content digest of each segment that it was made of, from what is stored now."""


class CopyWriter:
    """Puts the objects of one attempt. Loop only.

    Args:
        store: The object store to write to.
        work: A queue of heavy work of its own.
        throttle: Shared by all uploads.
        clock: The time.
        check: Raises an error when the attempt must end, because its order does not hold any more.
    """

    def __init__(
        self,
        store: ObjectStore,
        work: HeavyWork,
        throttle: Throttle,
        clock: Clock,
        check: Callable[[], None],
    ) -> None:
        self.store = store
        self.throttle = throttle
        self.check = check
        self._work = work
        self._clock = clock

    async def step(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Encode or decode something on a reader thread, unless it is over."""
        self.check()
        return await self._work.run(STEP_BYTES, function, *args)

    async def put(self, key: str, pieces: AsyncIterator[bytes]) -> StoredObject:
        """Put one object, piece by piece."""
        whole = hashlib.sha256()

        async def hashed() -> AsyncIterator[bytes]:
            async for piece in pieces:
                whole.update(piece)
                yield piece

        size_bytes = await self.store.put_stream(key, hashed())
        return StoredObject(key=key, size_bytes=size_bytes, sha256=whole.digest())

    async def finish(
        self, manifest: Manifest, also: Callable[[Any], None] | None = None
    ) -> WrittenCopy:
        """Prove what was put, and put the manifest.

        Args:
            manifest: Names all objects that were put.
            also: Is given all rows as they are stored, on a reader thread.

        Raises:
            TieredDamageError: What is stored is not what was put.
            InvalidRequestError: The manifest would be too long.
        """
        data = manifest.encode()
        if len(data) > MANIFEST_BYTES_MAX:
            raise InvalidRequestError(f"{manifest.key} would have {len(data)} bytes: too many")
        await self._prove(manifest, also)
        await self._put_manifest(manifest.key, data)
        objects = [each for each in (manifest.parquet, manifest.index, manifest.side) if each]
        length_bytes = len(data) + sum(each.size_bytes for each in objects)
        return WrittenCopy(manifest, hashlib.sha256(data).digest(), length_bytes)

    async def _prove(self, manifest: Manifest, also: Callable[[Any], None] | None) -> None:
        """Read back everything as it is stored, and compare it with the manifest. Bytes in memory
        prove nothing."""
        steps = _Steps(self._work, self.throttle, self._clock, self.check)
        await CopyReader(self.store, manifest, steps).verify(also)
        index = manifest.index
        if index is None:
            return
        found = hashlib.sha256()
        for at in range(0, index.size_bytes, PART_BYTES):
            span = (at, min(at + PART_BYTES, index.size_bytes))
            [part] = await self.store.get_ranges(index.key, [span])
            await steps.run(found.update, part)
        size_bytes = (await self.store.head(index.key)).size_bytes
        if (size_bytes, found.digest()) != (index.size_bytes, index.sha256):
            raise TieredDamageError(f"{index.key} is not what was put")

    async def _put_manifest(self, key: str, data: bytes) -> None:
        self.check()
        # If it exists, a request of ours put it whose answer was lost; else that is found now.
        with contextlib.suppress(ObjectExistsError):
            await self.store.put_if_absent(key, data)
        if await self.store.get_whole(key, MANIFEST_BYTES_MAX) != data:
            raise TieredDamageError(f"{key} is not what was put")


class _Steps:
    """A ``Runner`` for the proof: it works at most half of the time where uploads have a limit."""

    def __init__(
        self, work: HeavyWork, throttle: Throttle, clock: Clock, check: Callable[[], None]
    ) -> None:
        self._work = work
        self._throttle = throttle
        self._clock = clock
        self._check = check

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """See ``Runner.run``."""
        self._check()
        began_ms = self._clock.monotonic_ms()
        found = await self._work.run(STEP_BYTES, function, *args)
        if self._throttle.is_on:
            await asyncio.sleep((self._clock.monotonic_ms() - began_ms) / 1000)
        return found
