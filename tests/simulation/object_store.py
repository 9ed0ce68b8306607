"""An object store whose listings come late and whose answers may be lost, late or untrue.

A ``SimBucket`` is what the provider keeps; it outlives processes. Each process has a
``SimObjectStore`` of it. Faults are set by whoever runs the world and counted when they strike:
requests that fail before or after they took effect, an upload that was confirmed and is not there
or is cut short, a slow body, listings as of some time ago; and ``alter`` and ``remove`` do what
somebody else does to objects behind our back.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from icecore.codec.batch import Buffer
from icecore_node.remote.store.object_store import (
    PROBE_PREFIX,
    ByteRange,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStoreBusyError,
    ObjectTooShortError,
    check_key,
    check_length,
)
from tests.simulation.process import SimProcess

SLOW_BODY_S = 0.05
"""From then on a body counts as a slow one."""


@dataclass
class StoreFaults:
    """The numbers of the next requests that fail, each in its own way."""

    refused: int = 0
    """5xx: nothing was done."""
    lost_answers: int = 0
    """It was done, and nobody heard of it."""
    untrue_puts: int = 0
    """Confirmed, and not there: an error in the body of a 200."""
    cut_puts: int = 0
    """Confirmed, and only half of it there."""
    altered_puts: int = 0
    """Confirmed, and a byte of it is another one."""
    request_s: float = 0.0
    """How long each request takes."""
    body_s_per_mib: float = 0.0
    listing_lag_s: float = 0.0
    """A listing shows what was there so long ago."""
    struck: Counter[str] = field(default_factory=Counter)

    def heal(self) -> None:
        """No request fails any more, and none is late."""
        self.refused = self.lost_answers = self.untrue_puts = self.cut_puts = 0
        self.altered_puts = 0
        self.request_s = self.body_s_per_mib = self.listing_lag_s = 0.0

    def strikes(self, name: str) -> bool:
        """Return whether this request is hit; then it is counted."""
        left: int = getattr(self, name)
        if left:
            setattr(self, name, left - 1)
            self.struck[name] += 1
        return left > 0


@dataclass
class SimBucket:
    """The content of a provider's bucket."""

    faults: StoreFaults = field(default_factory=StoreFaults)
    objects: dict[str, bytes] = field(default_factory=dict)
    changes: list[tuple[float, str, int]] = field(default_factory=list)
    """(time, key, size) of each put; a size of -1 is a removal. Listings are made of these."""
    versions: dict[str, bytes] = field(default_factory=dict)
    """The objects as they were before a damage from outside."""

    def put(self, key: str, data: bytes) -> None:
        """Now it is there."""
        self.objects[key] = data
        self.changes.append((_now_s(), key, len(data)))

    def remove(self, key: str) -> None:
        """Now it is gone."""
        self.versions.pop(key, None)
        if self.objects.pop(key, None) is not None:
            self.changes.append((_now_s(), key, -1))

    def alter(self, key: str, position: int) -> None:
        """One byte becomes another one, as no request of ours would do it."""
        data = bytearray(self.objects[key])
        data[position] ^= 0xFF
        self.objects[key] = bytes(data)

    def damage(self, key: str, *, is_removal: bool) -> None:
        """Remove or alter an object from outside; the provider keeps the version before that."""
        self.versions[key] = self.objects[key]
        if is_removal:
            del self.objects[key]
        else:
            self.alter(key, len(self.versions[key]) // 2)
        self.faults.struck["removed_objects" if is_removal else "altered_objects"] += 1

    def lose(self, key: str) -> None:
        """Remove an object from outside, for good; the provider keeps no version."""
        del self.objects[key]
        self.faults.struck["lost_objects"] += 1

    def mend(self) -> None:
        """Bring those versions back, but for objects that were swept meanwhile."""
        self.objects |= self.versions
        self.versions.clear()

    def listed(self) -> dict[str, int]:
        """Sizes by key, as old as listings are."""
        until_s = _now_s() - self.faults.listing_lag_s
        found = {key: size for at_s, key, size in self.changes if at_s <= until_s}
        shown = {key: size for key, size in found.items() if size >= 0}
        if shown.keys() != self.objects.keys():
            self.faults.struck["late_listings"] += 1
        return shown


class SimObjectStore:
    """See ``ObjectStore``.

    Args:
        bucket: What it speaks to.
        process: Whose it is; None = nobody's that could be killed.
    """

    def __init__(self, bucket: SimBucket, process: SimProcess | None) -> None:
        self._bucket = bucket
        self._process = process

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore.put_if_absent``."""
        check_key(key)
        await self._request(len(data))
        if key in self._bucket.objects:
            raise ObjectExistsError(f"{key} exists", key=key)
        self._put(key, bytes(data))
        self._answer()

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """See ``ObjectStore.put_stream``."""
        check_key(key)
        await self._request(0)
        if key in self._bucket.objects:
            raise ObjectExistsError(f"{key} exists", key=key)
        parts = []
        async for piece in pieces:
            parts.append(bytes(piece))
            await self._request(len(piece))
        data = b"".join(parts)
        self._put(key, data)
        self._answer()
        found = (await self.head(key)).size_bytes
        if found != len(data):
            raise ObjectTooShortError(f"{key} has {found} bytes of {len(data)}", key=key)
        return len(data)

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``ObjectStore.get_ranges``."""
        check_key(key)
        await self._request(sum(end - start for start, end in ranges))
        data = self._find(key)
        if any(end > len(data) for _, end in ranges):
            raise ObjectTooShortError(f"{key} ends at {len(data)}", key=key)
        return [data[start:end] for start, end in ranges]

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectStore.get_whole``."""
        check_key(key)
        await self._request(len(self._bucket.objects.get(key, b"")))
        data = self._find(key)
        check_length(key, len(data), bytes_max)
        return data

    async def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore.head``."""
        check_key(key)
        await self._request(0)
        return ObjectInfo(key, len(self._find(key)))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ``ObjectStore.list``."""
        if prefix:
            check_key(prefix)
        await self._request(0)
        for key, size in sorted(self._bucket.listed().items()):
            if not prefix or key.startswith(prefix + "/"):
                yield ObjectInfo(key, size)

    async def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        check_key(key)
        await self._request(0)
        self._bucket.remove(key)
        self._answer()

    def _find(self, key: str) -> bytes:
        data = self._bucket.objects.get(key)
        if data is None:
            raise ObjectMissingError(f"{key} is not there", key=key)
        return data

    def _put(self, key: str, data: bytes) -> None:
        """Faults are saved for what counts: nobody believes in a probe that was put."""
        faults = self._bucket.faults
        if key.startswith(f"{PROBE_PREFIX}/"):
            self._bucket.put(key, data)
            return
        if faults.strikes("untrue_puts"):
            return
        stored = data[: len(data) // 2] if faults.strikes("cut_puts") else data
        self._bucket.put(key, stored)
        if stored and faults.strikes("altered_puts"):
            self._bucket.alter(key, len(stored) // 2)

    async def _request(self, length_bytes: int) -> None:
        self._check()
        faults = self._bucket.faults
        body_s = faults.body_s_per_mib * length_bytes / (1 << 20)
        delay_s = faults.request_s + body_s
        if body_s >= SLOW_BODY_S:
            faults.struck["slow_bodies"] += 1
        if delay_s:
            await asyncio.sleep(delay_s)
            self._check()
        if faults.strikes("refused"):
            raise ObjectStoreBusyError("503 Slow Down")

    def _answer(self) -> None:
        self._check()
        if self._bucket.faults.strikes("lost_answers"):
            raise ObjectStoreBusyError("the answer was lost")

    def _check(self) -> None:
        if self._process is not None:
            self._process.check()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
