"""Suite for every ``LogDatabase``: RocksDB, and the one of the simulator.

Subclasses supply the fixture ``database``: empty.
"""

import random

import pytest

from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange, LogDatabase


class LogDatabaseConformance:
    """Inherit and define ``database``."""

    @pytest.fixture
    def database(self) -> LogDatabase:
        raise NotImplementedError

    def test_an_empty_one_has_nothing(self, database: LogDatabase) -> None:
        assert database.get(b"k") is None
        assert database.floor(b"z", b"") is None
        assert list(database.scan(b"", b"\xff")) == []

    def test_ranges_go_before_pairs_come(self, database: LogDatabase) -> None:
        database.write(DatabaseChange([(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"")]))
        database.write(DatabaseChange([(b"b", b"4")], cuts=[(b"a", b"d")]))
        database.sync()
        assert list(database.scan(b"", b"\xff")) == [(b"b", b"4"), (b"d", b"")]
        assert (database.get(b"b"), database.get(b"c"), database.get(b"d")) == (b"4", None, b"")
        database.write(DatabaseChange(cuts=[(b"b", b"b"), (b"d", b"d\0")]))
        assert list(database.scan(b"", b"\xff")) == [(b"b", b"4")]

    def test_floor_and_scan_are_half_open(self, database: LogDatabase) -> None:
        database.write(DatabaseChange([(key, key) for key in (b"b", b"d", b"f")]))
        assert database.floor(b"a", b"") is None
        assert database.floor(b"b", b"b") == (b"b", b"b")
        assert database.floor(b"e", b"b") == (b"d", b"d")
        assert database.floor(b"e", b"e") is None
        assert database.floor(b"z", b"a") == (b"f", b"f")
        assert [key for key, _ in database.scan(b"b", b"f")] == [b"b", b"d"]

    def test_agrees_with_a_dict(self, database: LogDatabase) -> None:
        rng, model = random.Random(7), dict[bytes, bytes]()
        for step in range(300):
            keys = [rng.randbytes(1) for _ in range(4)]
            lower, upper = sorted(keys[:2])
            cuts = [(lower, upper)] if rng.random() < 0.3 else []
            puts = [(key, b"%d" % step) for key in dict.fromkeys(keys[2:])]
            database.write(DatabaseChange(puts, cuts))
            if cuts:
                model = {key: value for key, value in model.items() if not lower <= key < upper}
            model.update(puts)
            if rng.random() < 0.3:
                database.sync()
            expected = max((key for key in model if lower <= key <= upper), default=None)
            found = database.floor(upper, lower)
            assert found == (None if expected is None else (expected, model[expected]))
        assert list(database.scan(b"", b"\xff\xff")) == sorted(model.items())

    def test_close_is_idempotent(self, database: LogDatabase) -> None:
        database.write(DatabaseChange([(b"a", b"1")]))
        database.close()
        database.close()
