"""Suite for every storage engine, wherever the bytes are kept: the life of a log until its seal.

How replicas are condemned, set aside and deleted is in ``set_aside_suite.py``.
"""

import threading
from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError, NotReplicaError, StorageError
from icecore_node.storage.engine import NotAsSealed
from icecore_node.storage.replica_store import ReplicaStore
from tests.conformance.log_builder import LogBuilder, identity
from tests.conformance.set_aside_suite import SetAsideConformance
from tests.conformance.store_harness import FAR, StoreHarness, append, opened, read_all


class ReplicaStoreConformance(SetAsideConformance):
    """Inherit and define ``harness``."""

    # --- create and confirm -------------------------------------------------------------------

    def test_create_and_confirm_are_idempotent(self, store: ReplicaStore) -> None:
        log = opened(store, 1, base_offset=70)
        assert store.creation.create([identity(1), identity(2)]) == [None, None]
        assert store.creation.confirm(log.identity, b"state", 0) == log.tail
        assert store.reader.starting_state(1) == (b"state", 0)
        append(store, log)
        assert store.creation.confirm(log.identity, b"state", 0) == log.tail
        with pytest.raises(InvalidRequestError):
            store.creation.confirm(replace(log.identity, base_offset=71), b"state", 0)

    def test_an_empty_segment_may_be_confirmed_again_at_another_base(
        self, harness: StoreHarness
    ) -> None:
        opened(harness.store, 1, base_offset=70)
        log = LogBuilder(1, 75, start_timestamp_ms=9)
        assert harness.store.creation.confirm(log.identity, b"later", 9) == log.tail
        append(harness.store, log)
        (found,) = harness.kill()
        assert found.intact and found.identity == log.identity and found.tail == log.tail
        assert harness.store.reader.starting_state(1) == (b"later", 9)

    def test_another_identity_is_refused(self, store: ReplicaStore) -> None:
        opened(store, 1)
        (error,) = store.creation.create([identity(1, epoch=2)])
        assert isinstance(error, InvalidRequestError)
        with pytest.raises(InvalidRequestError):
            store.creation.confirm(identity(1, 0, epoch=2), b"", 0)
        with pytest.raises(NotReplicaError):
            store.creation.confirm(identity(9, 0), b"", 0)

    def test_a_prepared_replica_comes_back_prepared(self, harness: StoreHarness) -> None:
        harness.store.creation.create([identity(1)])
        (found,) = harness.kill()
        assert found.intact and found.identity == identity(1) and found.sealed_end_offset is None
        log = LogBuilder(1, 5)
        assert harness.store.creation.confirm(log.identity, b"", 0) == log.tail
        append(harness.store, log)

    def test_nothing_is_appended_before_confirm(self, store: ReplicaStore) -> None:
        store.creation.create([identity(1)])
        request = LogBuilder(1).request()
        store.append_group([request])
        assert isinstance(request.error, InvalidRequestError)

    # --- append and read ----------------------------------------------------------------------

    def test_groups_of_many_segments(self, harness: StoreHarness) -> None:
        logs = [opened(harness.store, segment_id) for segment_id in (1, 2, 3)]
        for size in (10, 700, 40):
            requests = [log.request(2, 3, size) for log in logs] + [logs[0].request(1, 1, size)]
            harness.store.append_group(requests)
            assert [request.error for request in requests] == [None] * 4
        for log in logs:
            assert read_all(harness.store, log) == b"".join(log.batches)
        for found, log in zip(harness.kill(), logs, strict=True):
            assert (found.intact, found.identity) == (True, log.identity)
            assert found.tail == log.tail
            assert found.headers == log.headers()
            assert found.producer_snapshot == b"state"
            assert read_all(harness.store, log) == b"".join(log.batches)
            append(harness.store, log)
            assert read_all(harness.store, log) == b"".join(log.batches)

    def test_one_request_larger_than_a_group(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 40, records=2, size=3000)  # several times group_bytes_max
        append(harness.store, log, 3)
        assert read_all(harness.store, log) == b"".join(log.batches)
        (found,) = harness.kill()
        assert found.tail == log.tail

    def test_several_large_requests_in_one_group(self, harness: StoreHarness) -> None:
        one, two = opened(harness.store, 1), opened(harness.store, 2)
        requests = [log.request(8, 2, 3000) for log in (one, two, one, two, one)]
        requests.append(two.request())
        harness.store.append_group(requests)
        assert [request.error for request in requests] == [None] * 6
        assert [found.tail for found in harness.kill()] == [one.tail, two.tail]

    def test_a_gap_is_refused_and_harms_nobody_else(self, store: ReplicaStore) -> None:
        one, two = opened(store, 1), opened(store, 2)
        one.request(1)
        gap, good, unknown = one.request(1), two.request(1), LogBuilder(9).request(1)
        store.append_group([gap, good, unknown])
        assert isinstance(gap.error, InvalidRequestError) and good.error is None
        assert isinstance(unknown.error, NotReplicaError)
        assert store.reader.read(1, 0, 1000, FAR) == (b"", 0)

    def test_read_borders(self, store: ReplicaStore) -> None:
        log = opened(store, 1, base_offset=100)
        append(store, log, 10, records=5, size=50)
        size = len(log.batches[0])
        for offset in (100, 102, 104):
            assert store.reader.read(1, offset, 1, FAR) == (log.batches[0], 105)
        assert store.reader.read(1, 105, 3 * size, FAR) == (b"".join(log.batches[1:4]), 120)
        assert store.reader.read(1, 105, 3 * size - 1, FAR) == (b"".join(log.batches[1:3]), 115)
        assert store.reader.read(1, 100, 1 << 20, 125) == (b"".join(log.batches[:5]), 125)
        assert store.reader.read(1, 100, 1 << 20, 124) == (b"".join(log.batches[:4]), 120)
        assert store.reader.read(1, 100, 1 << 20, 104) == (b"", 100)
        assert store.reader.read(1, 150, 1 << 20, FAR) == (b"", 150)
        assert store.reader.read(1, 149, 1 << 20, FAR) == (log.batches[9], 150)
        with pytest.raises(InvalidRequestError):
            store.reader.read(1, 99, 1000, FAR)
        with pytest.raises(NotReplicaError):
            store.reader.read(2, 0, 1000, FAR)

    def test_reads_after_restart_are_the_same(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1, base_offset=100)
        for _ in range(50):
            append(harness.store, log, 2, records=3, size=20)
        hot = [harness.store.reader.read(1, offset, 900, 390) for offset in range(100, 395, 7)]
        harness.kill()
        assert [
            harness.store.reader.read(1, offset, 900, 390) for offset in range(100, 395, 7)
        ] == hot

    def test_damage_is_never_returned(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 3, records=1, size=5000)
        harness.store.seal(1, 3, log.tail.digest)
        harness.stop()
        harness.damage(1, len(log.batches[0]) + 3000)
        assert harness.store.reader.read(1, 0, 1, FAR) == (log.batches[0], 1)
        with pytest.raises(StorageError):
            harness.store.reader.read(1, 1, 1, FAR)
        with pytest.raises(StorageError):
            harness.store.reader.full_digest(1)
        assert harness.store.reader.read(1, 2, 1, FAR) == (log.batches[2], 3)

    def test_readers_beside_an_appender(self, store: ReplicaStore) -> None:
        log = opened(store, 1)
        errors: list[BaseException] = []
        done = threading.Event()

        def follow() -> None:
            offset, data = 0, b""
            try:
                while True:
                    was_done = done.is_set()
                    run, offset = store.reader.read(1, offset, 3000, FAR)
                    data += run
                    if was_done and not run:
                        break
                assert data == b"".join(log.batches)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            append(store, log, 3, records=2, size=40)
        done.set()
        for thread in threads:
            thread.join()
        assert not errors

    # --- time, tails, headers -----------------------------------------------------------------

    def test_offset_for_time_is_exact(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1, base_offset=10)
        times = [5, 5, 7, 7, 7, 20, 20, 21, 40, 40]
        for time_ms in times:
            log.make(3, 700, time_ms=time_ms)
        harness.store.append_group([log.request_of(0, 4)])
        harness.store.append_group([log.request_of(4, 10)])

        def check() -> None:
            for wanted in range(45):
                for end_offset in (10, 16, 25, 40):
                    expected = next(
                        (
                            (10 + 3 * at, time_ms)
                            for at, time_ms in enumerate(times)
                            if time_ms >= wanted and 10 + 3 * at < end_offset
                        ),
                        None,
                    )
                    assert harness.store.reader.offset_for_time(1, wanted, end_offset) == expected

        check()
        harness.kill()
        check()
        harness.store.truncate(1, 25)
        log.tails, log.batches, times = log.tails[:6], log.batches[:5], times[:5]
        for time_ms in (7, 7, 8, 9, 30):
            log.make(3, 700, time_ms=time_ms)
            times.append(time_ms)
        request = log.request_of(5, 10)
        harness.store.append_group([request])
        assert request.error is None
        check()

    def test_tail_at_and_headers(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1, base_offset=3)
        for size in range(200):
            append(harness.store, log, 2, records=2, size=size)
        for _ in range(2):
            for number, tail in enumerate(log.tails):
                if number % 9 == 0 or number > 390:
                    assert harness.store.reader.tail_at(1, tail.end_offset) == tail
            assert harness.store.reader.headers(1, 43) == log.headers()[:20]
            assert harness.store.reader.headers(1, 44) == log.headers()[:20]
            for wrong in (4, 804, 2):
                assert harness.store.reader.tail_at(1, wrong) is None
            harness.kill()

    # --- truncate, seal, digests --------------------------------------------------------------

    def test_truncate(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 10, records=2)
        with pytest.raises(InvalidRequestError):
            harness.store.truncate(1, 7)
        assert harness.store.truncate(1, 8) == log.tails[4]
        log.tails, log.batches = log.tails[:5], log.batches[:4]
        assert harness.store.reader.read(1, 8, 1000, FAR) == (b"", 8)
        append(harness.store, log, 2, records=3, size=10)
        assert read_all(harness.store, log) == b"".join(log.batches)
        (found,) = harness.kill()
        assert found.intact and found.tail == log.tail
        assert harness.store.truncate(1, 0) == log.tails[0]
        (found,) = harness.kill()
        assert found.intact and found.tail == log.tails[0] and found.headers == []

    def test_a_truncated_tail_keeps_the_high_watermark_it_knew(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        log.make(1)
        log.make(1, high_watermark=1)
        harness.store.append_group([log.request_of(0, 2)])
        assert harness.store.truncate(1, 1).max_known_high_watermark == 1
        (found,) = harness.kill()
        assert found.tail.max_known_high_watermark == 1

    def test_seal(self, harness: StoreHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 5, records=2, size=3000)
        end, digest = log.tail.end_offset, log.tail.digest
        for wrong in ((end - 2, digest), (end, log.tails[2].digest)):
            with pytest.raises(NotAsSealed):
                harness.store.seal(1, *wrong)
        harness.store.seal(1, end, digest)
        harness.store.seal(1, end, digest)
        late = log.request(1)
        harness.store.append_group([late])
        assert isinstance(late.error, InvalidRequestError)
        with pytest.raises(InvalidRequestError):
            harness.store.truncate(1, 2)
        full = harness.store.reader.full_digest(1)
        for restart in (harness.kill, harness.stop):
            (found,) = restart()
            assert found.intact and found.tail == log.tails[5]
            assert (found.sealed_end_offset, found.seal_digest) == (end, digest)
            assert found.full_digest == full == harness.store.reader.full_digest(1)
            assert harness.store.reader.tail_at(1, 4) == log.tails[2]

    def test_full_digests_agree_between_replicas(self, store: ReplicaStore) -> None:
        one, two = opened(store, 1), opened(store, 2)
        append(store, one, 3, records=1, size=1)
        append(store, two, 3, records=1, size=1)
        for log in (one, two):
            store.seal(log.identity.segment_id, 3, log.tail.digest)
        assert store.reader.full_digest(1) != store.reader.full_digest(
            2
        )  # the segment id is in the headers
        with pytest.raises(InvalidRequestError):
            store.reader.full_digest(3)
