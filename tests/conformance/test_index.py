"""The RocksDB index: the common suite, and what happens to a damaged database."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError
from icecore_node.storage.index.rocks import RocksIndex
from tests.conformance.index_suite import IndexConformance


class TestRocksIndex(IndexConformance):
    """icecore_node.storage.index.rocks."""

    @pytest.fixture
    def index(self, tmp_path: Path) -> Iterator[RocksIndex]:
        index = RocksIndex(tmp_path / "index")
        yield index
        index.close()

    def test_data_survives_a_restart(self, tmp_path: Path) -> None:
        for round_number in range(3):
            index = RocksIndex(tmp_path / "again")
            assert len(list(index.scan("offset", b"", b"\xff"))) == round_number
            index.write([("offset", bytes([round_number]), b"v")])
            index.close()

    @pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
    def test_a_damaged_database_is_replaced_by_an_empty_one(
        self, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        index = RocksIndex(tmp_path / "damaged")
        index.write([("offset", b"k", b"v")])
        index.close()
        for file in (tmp_path / "damaged").glob(name):
            file.write_bytes(b"garbage that is no such file\n" * 10)
        index = RocksIndex(tmp_path / "damaged")
        assert "event=index_rebuilt" in caplog.text
        assert index.get("offset", b"k") is None
        index.write([("offset", b"k", b"new")])
        assert index.get("offset", b"k") == b"new"
        index.close()

    def test_a_lack_of_descriptors_is_no_damage(self, tmp_path: Path) -> None:
        """In a process of its own, because the limit is for all files."""
        index = RocksIndex(tmp_path / "kept")
        index.write([("offset", b"k", b"v")])
        index.close()
        code = (
            "import os, resource, sys; from pathlib import Path\n"
            "from icecore.errors import OutOfResourcesError\n"
            "from icecore_node.storage.index.rocks import RocksIndex\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); held = []\n"
            "try:\n"
            "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
            "except OSError: pass\n"
            "for left in range(12):\n"
            "    for fd in held[:left]: os.close(fd)\n"
            "    del held[:left]\n"
            "    try: RocksIndex(Path(sys.argv[1])).close(); print('opened'); break\n"
            "    except OutOfResourcesError: print('short')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "kept")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        words = done.stdout.split()
        assert words[0] == "short" and words[-1] == "opened", done.stderr
        index = RocksIndex(tmp_path / "kept")
        assert index.get("offset", b"k") == b"v"
        index.close()

    def test_a_database_in_use_is_not_thrown_away(self, index: RocksIndex, tmp_path: Path) -> None:
        index.write([("offset", b"k", b"v")])
        with pytest.raises(ConfigurationError):
            RocksIndex(tmp_path / "index")
        assert index.get("offset", b"k") == b"v"
