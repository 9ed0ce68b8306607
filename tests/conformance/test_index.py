"""The RocksDB index: the common suite, and what happens to a damaged database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError
from node.storage.index import RocksIndex
from tests.conformance.index_suite import IndexConformance


class TestRocksIndex(IndexConformance):
    """node.storage.index."""

    @pytest.fixture
    def index(self, tmp_path: Path) -> Iterator[RocksIndex]:
        index = RocksIndex(tmp_path / "index")
        yield index
        index.close()

    def test_data_survives_a_restart(self, tmp_path: Path) -> None:
        for round_number in range(3):
            index = RocksIndex(tmp_path / "again")
            assert not index.was_rebuilt
            assert len(list(index.scan("offset", b"", b"\xff"))) == round_number
            index.write([("offset", bytes([round_number]), b"v")])
            index.close()

    @pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
    def test_a_damaged_database_is_replaced_by_an_empty_one(
        self, tmp_path: Path, name: str
    ) -> None:
        index = RocksIndex(tmp_path / "damaged")
        index.write([("offset", b"k", b"v")])
        index.close()
        for file in (tmp_path / "damaged").glob(name):
            file.write_bytes(b"garbage that is no such file\n" * 10)
        index = RocksIndex(tmp_path / "damaged")
        assert index.was_rebuilt
        assert index.get("offset", b"k") is None
        index.write([("offset", b"k", b"new")])
        assert index.get("offset", b"k") == b"new"
        index.close()

    def test_a_database_in_use_is_not_thrown_away(self, index: RocksIndex, tmp_path: Path) -> None:
        index.write([("offset", b"k", b"v")])
        with pytest.raises(ConfigurationError):
            RocksIndex(tmp_path / "index")
        assert index.get("offset", b"k") == b"v"
