"""Suite for every ``Index``: RocksDB, and the one of the simulator.

Subclasses supply the fixture ``index``: empty, with the families of the segment engine.
"""

import random

import pytest

from icecore_node.ports import Index


def number(value: int) -> bytes:
    """A key that sorts like the number."""
    return value.to_bytes(8, "big")


class IndexConformance:
    """Inherit and define ``index``."""

    @pytest.fixture
    def index(self) -> Index:
        raise NotImplementedError

    def test_a_wiped_index_is_empty_and_can_be_used(self, index: Index) -> None:
        index.write([("durable", b"k", b"1"), ("offset", b"k", b"2")])
        index.flush()
        for _ in range(2):
            index.wipe()
            assert index.get("durable", b"k") is None
            assert index.floor("offset", b"z", b"") is None
            index.write([("durable", b"k", b"3")])
            index.flush()
            assert index.get("durable", b"k") == b"3"

    def test_the_last_write_of_a_key_wins(self, index: Index) -> None:
        assert index.get("durable", b"k") is None
        index.write([("durable", b"k", b"1"), ("offset", b"k", b"2"), ("durable", b"k", b"3")])
        assert index.get("durable", b"k") == b"3"
        assert index.get("offset", b"k") == b"2"
        assert index.get("time", b"k") is None
        index.write([])
        index.write(iter([("durable", b"k", b"")]))
        assert index.get("durable", b"k") == b""

    def test_floor(self, index: Index) -> None:
        assert index.floor("offset", number(5), number(0)) is None
        index.write([("offset", number(key), str(key).encode()) for key in (10, 20, 30)])
        assert index.floor("offset", number(9), number(0)) is None
        assert index.floor("offset", number(10), number(0)) == (number(10), b"10")
        assert index.floor("offset", number(29), number(0)) == (number(20), b"20")
        assert index.floor("offset", number(99), number(20)) == (number(30), b"30")
        assert index.floor("offset", number(29), number(21)) is None
        assert index.floor("offset", number(29), number(20)) == (number(20), b"20")
        assert index.floor("time", number(29), number(0)) is None

    def test_scan_is_ordered_and_half_open(self, index: Index) -> None:
        index.write([("time", number(key), b"") for key in (5, 1, 3, 4, 2)])
        assert [key for key, _ in index.scan("time", number(2), number(5))] == [
            number(2),
            number(3),
            number(4),
        ]
        assert list(index.scan("time", number(6), number(9))) == []

    def test_delete_range_is_half_open_and_of_one_family(self, index: Index) -> None:
        for family in ("offset", "time"):
            index.write([(family, number(key), b"x") for key in range(5)])
        index.delete_range("offset", number(1), number(3))
        assert [key for key, _ in index.scan("offset", number(0), number(9))] == [
            number(0),
            number(3),
            number(4),
        ]
        assert index.floor("offset", number(2), number(0)) == (number(0), b"x")
        assert len(list(index.scan("time", number(0), number(9)))) == 5
        index.write([("offset", number(2), b"again")])
        assert index.get("offset", number(2)) == b"again"

    def test_flush_and_close(self, index: Index) -> None:
        index.write([("offset", b"k", b"v")])
        index.flush()
        index.close()

    def test_agrees_with_a_dict(self, index: Index) -> None:
        rng, model = random.Random(7), dict[bytes, bytes]()
        for step in range(300):
            key = number(rng.randrange(100))
            if rng.random() < 0.1:
                upper = number(int.from_bytes(key) + rng.randrange(20))
                index.delete_range("offset", key, upper)
                model = {one: value for one, value in model.items() if not key <= one < upper}
            else:
                index.write([("offset", key, str(step).encode())])
                model[key] = str(step).encode()
            key, lower = number(rng.randrange(110)), number(rng.randrange(50))
            expected = max((one for one in model if lower <= one <= key), default=None)
            found = index.floor("offset", key, lower)
            assert found == (None if expected is None else (expected, model[expected]))
        assert list(index.scan("offset", b"", b"\xff" * 8)) == sorted(model.items())
