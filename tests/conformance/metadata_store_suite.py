"""Suite for every metadata store. Subclass it and say how to open one (see tests/unit)."""

import pytest

from icecore.errors import SupersededError
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore, Stored

ABSENT = 0


class MetadataStoreSuite:
    """Override ``open_store``: each call is another coordinator on the same records."""

    async def open_store(self) -> MetadataStore:
        raise NotImplementedError

    async def owned(self) -> MetadataStore:
        store = await self.open_store()
        await store.acquire_coordinator_epoch()
        return store

    async def test_absent_then_put_then_changed(self) -> None:
        store = await self.owned()
        assert await store.get("a") is None
        assert await store.txn([Compare("a", ABSENT)], [("a", "one")])
        assert await store.get("a") == Stored("a", "one", 1)
        assert await store.txn([Compare("a", 1)], [("a", "two")])
        assert await store.get("a") == Stored("a", "two", 2)

    async def test_compare_that_fails_changes_nothing(self) -> None:
        store = await self.owned()
        assert await store.txn([Compare("a", ABSENT)], [("a", "one")])
        compares = [Compare("a", 1), Compare("b", 1)]
        assert not await store.txn(compares, [("a", "two"), ("b", "x")], ["a"])
        assert await store.get("a") == Stored("a", "one", 1)
        assert await store.get("b") is None
        assert not await store.txn([Compare("a", ABSENT)], [("a", "again")])

    async def test_put_and_delete_in_one_transaction(self) -> None:
        store = await self.owned()
        await store.txn([], [("segment/1", "one"), ("segment/2", "two")])
        compares = [Compare("segment/1", 1), Compare("deleted/1", ABSENT)]
        assert await store.txn(compares, [("deleted/1", "gone")], ["segment/1"])
        assert await store.scan("segment/") == [Stored("segment/2", "two", 1)]
        assert await store.scan("deleted/") == [Stored("deleted/1", "gone", 1)]

    async def test_the_revision_counts_changes_and_nothing_else(self) -> None:
        store = await self.owned()
        before = store.revision
        assert before >= 1
        assert await store.txn([Compare("a", ABSENT)], [("a", "one"), ("b", "one")])
        assert store.revision == before + 1
        assert not await store.txn([Compare("a", ABSENT)], [("a", "two")])
        assert await store.txn([Compare("a", 1)], [])
        assert store.revision == before + 1
        assert await store.txn([Compare("a", 1)], [], ["a"])
        later = await self.owned()
        assert later.revision == before + 2
        with pytest.raises(SupersededError):
            await store.txn([], [("c", "late")])
        assert (await self.owned()).revision == before + 2

    async def test_many_rows_are_rewritten_in_one_transaction_or_none_is(self) -> None:
        store = await self.owned()
        keys = [f"heard/{number:03d}" for number in range(64)]
        for version in range(3):
            compares = [Compare(key, version) for key in keys]
            assert await store.txn(compares, [(key, "x" * 10_000 + key) for key in keys])
        found = [Stored(key, "x" * 10_000 + key, 3) for key in keys]
        assert await store.scan("heard/") == found
        compares = [Compare(key, 3 - (key == keys[-1])) for key in keys]
        assert not await store.txn(compares, [(key, "") for key in keys])
        assert await store.scan("heard/") == found

    async def test_scan_is_ordered_and_keeps_to_the_prefix(self) -> None:
        store = await self.owned()
        keys = ["segment/b", "segment/a/2", "segment/a/10", "segments", "seg", "topic/é"]
        await store.txn([], [(key, key) for key in keys])
        found = [each.key for each in await store.scan("segment/")]
        assert found == ["segment/a/10", "segment/a/2", "segment/b"]
        assert [each.key for each in await store.scan("topic/")] == ["topic/é"]
        assert len(await store.scan("")) == len(keys)

    async def test_a_scan_may_come_in_pages(self) -> None:
        store = await self.owned()
        keys = [f"segment/{number:03}" for number in range(25)]
        await store.txn([], [(key, key) for key in ["aside", *keys, "topic/1"]])
        found: list[str] = []
        pages = 0
        while page := await store.scan("segment/", found[-1] if found else "", 10):
            assert len(page) <= 10
            found += [each.key for each in page]
            pages += 1
        assert (found, pages) == (keys, 3)
        assert await store.scan("segment/", "topic/1", 10) == []
        assert [each.key for each in await store.scan("", "segment/023")] == [keys[-1], "topic/1"]

    async def test_nothing_is_written_without_a_coordinator_epoch(self) -> None:
        store = await self.open_store()
        with pytest.raises(SupersededError):
            await store.txn([], [("a", "one")])

    async def test_older_coordinator_is_fenced_by_a_newer_one(self) -> None:
        old = await self.open_store()
        first = await old.acquire_coordinator_epoch()
        assert await old.txn([], [("a", "old")])
        new = await self.open_store()
        second = await new.acquire_coordinator_epoch()
        assert second > first > 0
        with pytest.raises(SupersededError):
            await old.txn([Compare("a", 1)], [("a", "old again")])
        assert await new.txn([Compare("a", 1)], [("a", "new")])
        with pytest.raises(SupersededError):
            await old.txn([], [], ["a"])
        assert await new.get("a") == Stored("a", "new", 2)

    async def test_an_adoption_sets_versions_and_goes_above_all_that_is_known(self) -> None:
        store = await self.owned()
        await store.txn([], [("a", "one"), ("b", "one"), ("c", "one")])
        puts = [Stored("a", "other", 700), Stored("d", "new", 3)]
        await store.adopt(puts, ["b"], 1_000, 5_000)
        later = await self.open_store()
        assert await later.acquire_coordinator_epoch() > 1_000
        assert later.revision >= 5_000
        assert await later.scan("") == [
            Stored("a", "other", 700),
            Stored("c", "one", 1),
            Stored("d", "new", 3),
        ]
        assert await later.txn([Compare("a", 700)], [("a", "next")])
        assert await later.get("a") == Stored("a", "next", 701)

    async def test_an_adoption_lowers_no_number(self) -> None:
        store = await self.owned()
        await store.adopt([], [], 1_000, 5_000)
        again = await self.open_store()
        highest = await again.acquire_coordinator_epoch()
        await again.adopt([], [], 10, 10)
        later = await self.open_store()
        assert await later.acquire_coordinator_epoch() > highest
        assert later.revision == again.revision > 5_000

    async def test_an_older_coordinator_adopts_nothing(self) -> None:
        old = await self.owned()
        new = await self.owned()
        with pytest.raises(SupersededError):
            await old.adopt([Stored("a", "late", 9)], [], 1_000, 5_000)
        assert await new.get("a") is None

    async def test_records_and_tokens_outlive_a_restart(self) -> None:
        store = await self.open_store()
        first = await store.acquire_coordinator_epoch()
        await store.txn([], [("a", "one")])
        await store.txn([Compare("a", 1)], [("a", "two")])
        await store.close()
        await store.close()
        again = await self.open_store()
        assert await again.get("a") == Stored("a", "two", 2)
        assert await again.acquire_coordinator_epoch() > first
