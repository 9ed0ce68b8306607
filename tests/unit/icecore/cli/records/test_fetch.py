"""``icecore fetch``: positions from the end, where it ends, and how records are laid out."""

from collections.abc import Iterator

import pytest

from tests.support.cli_cluster import Cli, serving
from tests.support.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Ten records in each of two partitions."""
    rows = [(number % 2, {"value": b"%d" % number}) for number in range(20)]
    with serving("t", 2, rows) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster.bootstrap, capsys)


def found(cli: Cli, *words: str) -> list[int]:
    return sorted(map(int, cli.values("fetch", "t", *words)))


def test_the_last_records_of_each_partition(cli: Cli) -> None:
    assert found(cli, "-o", "-2") == [16, 17, 18, 19]
    assert found(cli, "--from", "-1", "--partition", "1") == [19]
    assert len(found(cli, "-o", "-999")) == 20
    assert cli.err.strip().endswith("20 records")
    for wrong in ("-0", "-x", "-" + "9" * 30, "9" * 30):
        cli("fetch", "t", "-o", wrong, status=2)


def test_until_an_offset(cli: Cli) -> None:
    assert found(cli, "--until", "2") == [0, 1, 2, 3]
    assert found(cli, "--from", "8", "--until", "9") == [16, 17]
    assert found(cli, "--until", "0") == []
    cli("fetch", "t", "--until", "latest", status=2)
    cli("fetch", "t", "--until", "5", "--follow", status=2)


def test_until_a_time_holds_per_partition(cli: Cli) -> None:
    """The first record of each partition has time 1000, the next one 1001."""
    assert found(cli, "--until", "@1003") == [0, 1, 2, 3, 4, 5]
    assert found(cli, "--from", "@1008", "--until", "1970-01-01T00:00:01.009") == [16, 17]
    assert found(cli, "--until", "@1000") == []
    assert len(found(cli, "--until", "2026-11-21T10:00")) == 20


def test_an_offset_behind_every_end_is_an_error(cli: Cli) -> None:
    cli("fetch", "t", "--from", "11", status=1)
    assert "offset 11 is behind the end, 10" in cli.err
    cli("fetch", "t", "--from", "11", "--follow", status=1)
    assert "offset 11 is behind the end, 10" in cli.err
    assert found(cli, "--from", "10") == []
    assert found(cli, "--from", "9") == [18, 19]


def test_layouts(cli: Cli, cluster: FakeCluster) -> None:
    for wrong in ("yaml", "%x", "plain"):
        cli("fetch", "t", "--format", wrong, status=2)
    assert cli("fetch", "t", "-n", "1", "-f", "records").count('"value"') == 1
    newest = cli("fetch", "t", "-o", "-1", "-f", r"%p:%v\n").split()
    assert sorted(newest) == ["0:18", "1:19"]  # two nodes are asked at once
