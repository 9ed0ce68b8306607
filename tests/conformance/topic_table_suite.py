"""Suite for every table of a topic, whatever keeps it.

Subclasses supply the fixture ``open_table``: opens the table of a cluster's topic once more.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import pytest

from icecore.errors import ConflictError, InvalidRequestError, ObjectStoreError
from icecore_node.remote.format.table_file import TableFile
from icecore_node.remote.ports import Table

CLUSTER, TOPIC = b"cluster of tests", b"topic of a test."
NOW_MS = 1_700_000_000_000


class ReadableTable(Table, Protocol):
    """One whose files can be asked for."""

    def files(self) -> list[str]:
        """Sorted."""
        ...


OpenTable = Callable[[bytes, bytes], ReadableTable]


def file(path: str, records: int = 3) -> TableFile:
    return TableFile(path, 1000, records, {"partition": 0}, {"partition": 0})


def commit(table: Table, partition: int, revision: int, paths: Sequence[str]) -> bool:
    """As a node does it: what is said is said of those that the table does not name."""
    added = [file(path) for path in table.compare(partition, revision, paths).unnamed]
    return table.bring_to(partition, revision, paths, added, NOW_MS)


class TopicTableConformance:
    """Inherit and define ``open_table``."""

    @pytest.fixture
    def open_table(self) -> OpenTable:
        raise NotImplementedError

    @pytest.fixture
    def table(self, open_table: OpenTable) -> ReadableTable:
        return open_table(CLUSTER, TOPIC)

    async def test_it_becomes_what_is_asked_for(
        self, table: ReadableTable, open_table: OpenTable
    ) -> None:
        assert table.files() == []
        assert table.compare(0, 1, ["0/a", "0/b"]) == (["0/a", "0/b"], [])
        assert commit(table, 0, 1, ["0/a", "0/b"])
        assert commit(table, 1, 1, ["1/a"])
        assert table.files() == ["0/a", "0/b", "1/a"]
        assert table.compare(0, 2, ["0/b", "0/c"]) == (["0/c"], ["0/a"])
        assert commit(table, 0, 2, ["0/b", "0/c"])
        assert open_table(CLUSTER, TOPIC).files() == ["0/b", "0/c", "1/a"]
        assert commit(table, 0, 3, [])
        assert table.files() == ["1/a"]

    async def test_calls_that_repeat_or_come_late(self, table: ReadableTable) -> None:
        assert commit(table, 0, 5, ["0/a"])
        assert not commit(table, 0, 5, ["0/a", "0/b"])
        assert table.compare(0, 4, ["0/b"]) == ([], [])
        assert not table.bring_to(0, 4, ["0/b"], [], NOW_MS)
        assert commit(table, 0, 9, ["0/a"])  # nothing differs, and 8 is late from now on
        assert not commit(table, 0, 8, [])
        assert table.files() == ["0/a"]

    async def test_what_nobody_has_described_is_not_added(self, table: ReadableTable) -> None:
        """Between two calls of one order the table became another one."""
        assert commit(table, 0, 1, ["0/a"])
        assert commit(table, 0, 2, [])
        with pytest.raises(ConflictError, match="a moment ago"):
            table.bring_to(0, 3, ["0/a", "0/b"], [file("0/b")], NOW_MS)
        assert table.files() == []
        assert commit(table, 0, 3, ["0/a", "0/b"])

    async def test_another_cluster_s_table_is_left_alone(
        self, table: ReadableTable, open_table: OpenTable
    ) -> None:
        commit(table, 0, 1, ["0/a"])
        other = open_table(b"another cluster.", TOPIC)
        for call in (
            lambda: other.bring_to(0, 2, [], [], NOW_MS),
            lambda: other.compare(0, 2, []),
        ):
            with pytest.raises(ObjectStoreError, match="is a table of"):
                call()
        assert table.files() == ["0/a"]
        assert open_table(CLUSTER, bytes(16)).files() == []

    async def test_bad_input_changes_nothing(self, table: ReadableTable) -> None:
        for paths, message in ((["1/a"], "partition 0"), (["0/a", "0/a"], "twice")):
            with pytest.raises(InvalidRequestError, match=message):
                table.compare(0, 1, paths)
            with pytest.raises(InvalidRequestError, match=message):
                table.bring_to(0, 1, paths, [file(each) for each in paths], NOW_MS)
        assert table.files() == []
