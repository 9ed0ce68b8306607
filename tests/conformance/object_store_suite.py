"""Suite for every object store, whatever server stands behind it."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from icecore.errors import InvalidRequestError
from icecore_node.remote.store.object_store import (
    PROBE_PREFIX,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStore,
    ObjectTooShortError,
    check_store,
)

LARGE_BYTES = 20 << 20
"""More than one part of an upload."""


class PiecesEndedError(FileNotFoundError):
    """The maker of the pieces gives up, with an error that a store has, too."""


async def pieces_of(data: bytes, piece_bytes: int, fail_at: int = -1) -> AsyncIterator[bytes]:
    for position in range(0, len(data), piece_bytes):
        if 0 <= fail_at <= position:
            raise PiecesEndedError
        yield data[position : position + piece_bytes]


async def keys_below(store: ObjectStore, prefix: str) -> dict[str, int]:
    return {each.key: each.size_bytes async for each in store.list(prefix)}


class ObjectStoreConformance:
    """Give ``store``: empty."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    async def test_an_object_is_read_by_ranges(self, store: ObjectStore) -> None:
        await store.put_if_absent("t/0/a", memoryview(b"0123456789"))
        assert (await store.head("t/0/a")).size_bytes == 10
        ranges = [(8, 10), (0, 3), (2, 4), (5, 5)]
        assert await store.get_ranges("t/0/a", ranges) == [b"89", b"012", b"23", b""]
        assert await store.get_whole("t/0/a", 10) == b"0123456789"
        with pytest.raises(InvalidRequestError, match="10 bytes"):
            await store.get_whole("t/0/a", 9)

    @pytest.mark.parametrize("length", [0, 1, 1000, 3 << 20])
    async def test_a_small_object_is_read_whole(self, store: ObjectStore, length: int) -> None:
        data = os.urandom(length)
        await store.put_if_absent("t/whole", data)
        for bytes_max in (length, length + 1, 2 * length + 7):
            assert await store.get_whole("t/whole", bytes_max) == data
        if length:
            with pytest.raises(InvalidRequestError, match=f"{length} bytes, not ≤ {length - 1}"):
                await store.get_whole("t/whole", length - 1)
            with pytest.raises(InvalidRequestError, match=f"{length} bytes, not ≤ 0"):
                await store.get_whole("t/whole", 0)
        assert await store.get_whole("t/whole", length) == data, "as before"
        with pytest.raises(ObjectMissingError):
            await store.get_whole("t", 10)
        with pytest.raises(InvalidRequestError):
            await store.get_whole("t/../t/whole", 10)

    async def test_an_object_without_bytes(self, store: ObjectStore) -> None:
        await store.put_if_absent("empty", b"")
        assert (await store.head("empty")).size_bytes == 0
        assert await store.get_whole("empty", 0) == b""

    async def test_what_is_there_stays(self, store: ObjectStore) -> None:
        await store.put_if_absent("a", b"first")
        with pytest.raises(ObjectExistsError):
            await store.put_if_absent("a", b"second")
        with pytest.raises(ObjectExistsError):
            await store.put_stream("a", pieces_of(b"third", 2))
        assert await store.get_whole("a", 100) == b"first"

    async def test_one_of_many_writers_wins(self, store: ObjectStore) -> None:
        puts = [store.put_if_absent("race", f"{at}".encode()) for at in range(8)]
        found = await asyncio.gather(*puts, return_exceptions=True)
        winners = [at for at, each in enumerate(found) if each is None]
        assert len(winners) == 1
        assert all(isinstance(each, ObjectExistsError) for each in found if each is not None)
        assert await store.get_whole("race", 10) == f"{winners[0]}".encode()

    @pytest.mark.parametrize(("length", "piece_bytes"), [(LARGE_BYTES, 3 << 20), (7, 2), (1, 1)])
    async def test_a_stream_becomes_one_object(
        self, store: ObjectStore, length: int, piece_bytes: int
    ) -> None:
        data = os.urandom(length)
        assert await store.put_stream("t/large", pieces_of(data, piece_bytes)) == length
        assert await store.get_whole("t/large", length) == data

    async def test_a_stream_that_ends_early_leaves_nothing(self, store: ObjectStore) -> None:
        data = bytes(LARGE_BYTES)
        with pytest.raises(PiecesEndedError):
            await store.put_stream("t/half", pieces_of(data, 1 << 20, fail_at=12 << 20))
        with pytest.raises(ObjectMissingError):
            await store.head("t/half")
        assert await keys_below(store, "t") == {}

    async def test_what_is_not_there(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectMissingError):
            await store.head("no/such")
        with pytest.raises(ObjectMissingError):
            await store.get_ranges("no/such", [(0, 1)])
        with pytest.raises(ObjectMissingError):
            await store.get_whole("no/such", 1)
        await store.delete("no/such")
        assert await keys_below(store, "no") == {}

    @pytest.mark.parametrize("asked", [(0, 6), (4, 6), (5, 6), (90, 99)])
    async def test_nothing_is_shorter_than_asked(
        self, store: ObjectStore, asked: tuple[int, int]
    ) -> None:
        await store.put_if_absent("five", b"12345")
        with pytest.raises(ObjectTooShortError):
            await store.get_ranges("five", [(0, 2), asked])

    async def test_listings_go_by_steps_of_the_path(self, store: ObjectStore) -> None:
        for key in ("t/0/a", "t/0/b.idx", "t/1/a", "tt/a", "other"):
            await store.put_if_absent(key, key.encode())
        assert await keys_below(store, "t") == {"t/0/a": 5, "t/0/b.idx": 9, "t/1/a": 5}
        assert await keys_below(store, "t/0") == {"t/0/a": 5, "t/0/b.idx": 9}
        assert len(await keys_below(store, "")) == 5

    async def test_a_removed_object_may_not_be_read(self, store: ObjectStore) -> None:
        await store.put_if_absent("t/a", b"1")
        await store.delete("t/a")
        await store.delete("t/a")
        with pytest.raises(ObjectMissingError):
            await store.get_ranges("t/a", [(0, 1)])
        assert await keys_below(store, "t") == {}

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "ü", "a b", "a\nb", "x" * 513]
    )
    async def test_strange_keys_are_refused(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(InvalidRequestError):
            await store.put_if_absent(key, b"1")
        with pytest.raises(InvalidRequestError):
            await store.put_stream(key, pieces_of(b"1", 1))
        with pytest.raises(InvalidRequestError):
            await store.get_ranges(key, [(0, 1)])
        with pytest.raises(InvalidRequestError):
            await store.delete(key)
        assert await keys_below(store, "") == {}

    async def test_the_probe_leaves_nothing(self, store: ObjectStore) -> None:
        await check_store(store, "node-1")
        await check_store(store, "node-1")
        assert await keys_below(store, "") == {}

    async def test_a_probe_that_was_left_is_removed(self, store: ObjectStore) -> None:
        await store.put_if_absent(f"{PROBE_PREFIX}/node-1", b"node-1, before it died")
        await check_store(store, "node-1")
        assert await keys_below(store, "") == {}
