"""Suite for every storage engine: replicas that count for nothing, or are to be deleted."""

import pytest

from icecore.errors import FencedError, InvalidRequestError, NotReplicaError, StorageError
from tests.conformance.log_builder import identity
from tests.conformance.store_harness import FAR, OnHarness, StoreHarness, append, opened, read_all


class SetAsideConformance(OnHarness):
    """Inherit and define ``harness``."""

    def test_verification_in_steps_finds_what_full_digest_says(self, harness: StoreHarness) -> None:
        store = harness.store
        log = opened(store, 1)
        for _ in range(20):
            append(store, log, batches=10, records=3)
        with pytest.raises(InvalidRequestError):
            store.reader.verification(1)
        store.seal(1, log.tail.end_offset, log.tail.digest)
        digest, size = store.reader.full_digest(1), len(read_all(store, log))
        walk, length, steps = store.reader.verification(1), 0, 0
        while not walk.digest:
            length += walk.step(1000)
            steps += 1
        assert (walk.digest, length) == (digest, size)
        assert steps > 5

        harness.damage(1, size - 20)
        walk = store.reader.verification(1)
        with pytest.raises(StorageError):
            while not walk.digest:
                walk.step(1000)
        with pytest.raises(StorageError):  # nothing has moved: the same again
            walk.step(1000)

    def test_a_condemned_replica_stays_unknown(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log)
        opened(harness.store, 2)
        harness.store.salvage.condemn([1, 99], "an old copy")
        first, second = harness.kill()
        assert (first.intact, first.why, second.intact) == (False, "an old copy", True)
        [error] = harness.store.creation.create([log.identity])
        assert isinstance(error, StorageError)  # never in its place without setting it aside
        harness.store.removal.quarantine(1, "repair")
        assert harness.store.creation.create([log.identity]) == [None]

    def test_promises_never_go_back(self, harness: StoreHarness) -> None:
        harness.store.promises.persist([(1, 5), (2, 3)], 10)
        for stale in (([(1, 4)], 10), ([(2, 9), (1, 4)], 10), ([(1, 6)], 9)):
            with pytest.raises(FencedError):
                harness.store.promises.persist(*stale)
        harness.store.promises.persist([(1, 5)], 10)
        harness.kill()
        assert [harness.store.promises.epoch_of(one) for one in (1, 2, 3)] == [5, 3, 0]
        with pytest.raises(FencedError):
            harness.store.promises.persist([(3, 1)], 9)
        harness.store.creation.create([identity(1, epoch=1), identity(3, epoch=2)])
        assert [harness.store.promises.epoch_of(one) for one in (1, 3)] == [5, 2]

    def test_a_quarantined_replica_is_unknown_until_it_is_certified(
        self, harness: StoreHarness
    ) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 3)
        harness.store.removal.quarantine(1, "a test")
        harness.store.removal.quarantine(1, "again")
        with pytest.raises(NotReplicaError):
            harness.store.reader.read(1, 0, 1000, FAR)
        (found,) = harness.kill()
        assert not found.intact and "a test" in found.why
        log = opened(harness.store, 1)
        append(harness.store, log, 2)
        (found,) = harness.kill()
        assert not found.intact and found.tail == log.tail  # half rebuilt
        append(harness.store, log, 2)
        harness.store.creation.certify(1)
        (found,) = harness.kill()
        assert found.intact and found.tail == log.tail

    def test_a_rebuilt_replica_is_certified_by_its_seal(self, harness: StoreHarness) -> None:
        opened(harness.store, 1)
        harness.store.removal.quarantine(1, "a test")
        log = opened(harness.store, 1)
        append(harness.store, log, 2)
        harness.store.seal(1, 2, log.tail.digest)
        (found,) = harness.kill()
        assert found.intact and found.sealed_end_offset == 2

    def test_what_is_provable_of_a_condemned_log_can_be_salvaged(
        self, harness: StoreHarness
    ) -> None:
        log = opened(harness.store, 1, 100)
        append(harness.store, log, 3, records=1, size=5000)
        whole = log.tail
        harness.store.salvage.condemn([1], "a sync had failed")
        (found,) = harness.kill()
        assert not found.intact
        assert harness.store.salvage.tail(1) == whole  # nothing was changed by looking
        with pytest.raises(NotReplicaError):
            harness.store.salvage.readmit(1)  # in its place only once that is free
        harness.damage(1, len(log.batches[0]) + len(log.batches[1]) + 3000)
        tail = harness.store.salvage.tail(1)
        assert tail is not None and tail.end_offset == 102
        harness.store.removal.quarantine(1, "salvage")
        found = harness.store.salvage.readmit(1)
        assert (found.tail.end_offset, found.producer_snapshot) == (102, b"state")
        assert len(found.headers) == 2
        assert harness.store.reader.read(1, 100, 1 << 20, FAR) == (b"".join(log.batches[:2]), 102)
        (found,) = harness.kill()
        assert not found.intact and found.tail == tail  # nobody is to take it for whole
        harness.store.seal(1, 102, tail.digest)
        (found,) = harness.kill()
        assert found.intact and found.sealed_end_offset == 102
        assert harness.store.salvage.tail(1) is None

    def test_the_longest_provable_file_is_salvaged_also_one_set_aside(
        self, harness: StoreHarness
    ) -> None:
        assert harness.store.salvage.tail(1) is None
        log = opened(harness.store, 1)
        append(harness.store, log, 3)
        long = log.tail
        harness.store.removal.quarantine(1, "a copy is to take its place")
        append(harness.store, opened(harness.store, 1), 1)
        assert harness.store.salvage.tail(1) == long
        harness.store.removal.quarantine(1, "salvage")
        assert harness.store.salvage.readmit(1).tail == long

    def test_delete(self, harness: StoreHarness) -> None:
        kept, gone = opened(harness.store, 1), opened(harness.store, 2)
        append(harness.store, kept, 2)
        append(harness.store, gone, 2)
        harness.store.promises.persist([(2, 4)], 10)
        with pytest.raises(FencedError):
            harness.store.removal.delete([2], 9)
        harness.store.removal.delete([2], 10)
        harness.store.removal.delete([2], 10)
        with pytest.raises(NotReplicaError):
            harness.store.reader.read(2, 0, 1000, FAR)
        (found,) = harness.kill()
        assert found.identity == kept.identity
        assert harness.store.promises.epoch_of(2) == 4
        again = opened(harness.store, 2, base_offset=50)  # copied here again by a repair
        append(harness.store, again, 2)
        assert [found.tail for found in harness.kill()] == [kept.tail, again.tail]
        assert all(found.intact for found in harness.kill())

    def test_many_are_deleted_together(self, harness: StoreHarness) -> None:
        logs = [opened(harness.store, segment_id) for segment_id in (1, 2, 3, 4)]
        for log in logs:
            append(harness.store, log, 2)
        harness.store.seal(3, logs[2].tail.end_offset, logs[2].tail.digest)
        harness.store.removal.quarantine(4, "a test")
        with pytest.raises(FencedError):
            harness.store.promises.persist([], 8)
            harness.store.removal.delete([1, 2], 7)
        assert read_all(harness.store, logs[1]) == b"".join(logs[1].batches)
        harness.store.removal.delete([1, 3, 4, 9, 1], 8)
        harness.store.removal.delete([], 8)
        (found,) = harness.kill()
        assert found.identity == logs[1].identity and found.intact
        assert read_all(harness.store, logs[1]) == b"".join(logs[1].batches)

    def test_files_are_reused_without_a_trace(self, harness: StoreHarness) -> None:
        old = opened(harness.store, 1)
        append(harness.store, old, 30, records=1, size=3000)
        harness.store.seal(1, 30, old.tail.digest)
        harness.store.removal.delete([1], 1)
        log = opened(harness.store, 2)
        append(harness.store, log, 1, records=1, size=3000)  # old batches start right behind it
        (found,) = harness.kill()
        assert found.intact and found.tail == log.tail and found.headers == log.headers()
        append(harness.store, log, 5)
        assert read_all(harness.store, log) == b"".join(log.batches)

    def test_a_clean_stop(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 4)
        harness.store.index.flush()
        (found,) = harness.stop()
        assert found.intact and found.tail == log.tail
