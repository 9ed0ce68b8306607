"""``icecore position`` and ``icecore fetch --position``, against a fake cluster."""

import json
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


def items(text: str) -> list[dict[str, object]]:
    document = json.loads(text)
    assert document["schema"] == 1
    return document["items"]  # type: ignore[no-any-return]


def test_fetch_goes_on_where_it_was(cli: Cli, cluster: FakeCluster) -> None:
    first = cli.values("fetch", "t", "--position", "job", "-n", "7")
    rest = cli.values("fetch", "t", "--position", "job", "--from", "latest")
    assert len(first) == 7 and sorted(map(int, first + rest)) == list(range(20))
    assert cli.values("fetch", "t", "--position", "job") == []
    assert cluster.positions.offsets("job") == {("t", 0): 10, ("t", 1): 10}
    cli("fetch", "t", "--position", "no/name", status=1)


def test_what_lies_behind_the_end_is_for_the_next_one(cli: Cli, cluster: FakeCluster) -> None:
    for until, offset in (("2", 2), ("@1005", 5), ("5", 5)):
        cli("fetch", "t", "--position", "job", "--until", until)
        assert cluster.positions.offsets("job") == {("t", 0): offset, ("t", 1): offset}
    assert len(cli.values("fetch", "t", "--position", "job")) == 10


def test_fetch_takes_several_topics(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("fetch", "t", "t", "-n", "3").splitlines()]
    assert [row["topic"] for row in rows] == ["t"] * 3
    rows = [json.loads(line) for line in cli("fetch", "--pattern", "t|u").splitlines()]
    assert len(rows) == 20 and {row["topic"] for row in rows} == {"t"}
    assert cli("fetch", "--pattern", "u") == ""
    assert "topic" not in json.loads(cli("fetch", "t", "-n", "1"))
    cli("fetch", status=2)
    cli("fetch", "t", "--pattern", "t", status=2)
    cli("fetch", "t", "missing", status=3)
    cli("fetch", "--pattern", "(", status=1)


def test_list_and_lag(cli: Cli, cluster: FakeCluster) -> None:
    cli("fetch", "t", "--position", "job", "--partition", "1", "-n", "4")
    [row] = items(cli("position", "list", "--name", "job"))
    assert (row["name"], row["topic"], row["partition"], row["offset"]) == ("job", "t", 1, 4)
    [row] = items(cli("position", "lag", "job"))
    assert (row["end"], row["lag"]) == (10, 6)
    assert "6 records behind" in cli.err
    cluster.topics["t"][1].left_out = ((2, 5), (6, 8))
    [row] = items(cli("position", "lag", "job"))
    assert (row["end"], row["lag"]) == (10, 3)
    assert items(cli("position", "lag", "other")) == []
    assert "nothing is saved under other" in cli.err
    assert "behind" not in cli.err, "a slip of the pen is no reader that has read all"


def test_reset_shows_first_and_then_moves(cli: Cli, cluster: FakeCluster) -> None:
    cli("fetch", "t", "--position", "job", "--partition", "1", "-n", "4")
    rows = items(cli("position", "reset", "job", "t", "--to", "-3", "--dry-run"))
    assert [(row["partition"], row["offset"], row["to"]) for row in rows] == [
        *((0, None, 7), (1, 4, 7)),
    ]
    assert cluster.positions.offsets("job") == {("t", 1): 4}
    cli("position", "reset", "job", "t", "--to", "-3", "--yes")
    assert cluster.positions.offsets("job") == {("t", 0): 7, ("t", 1): 7}
    for to, offset in (("earliest", 0), ("latest", 10), ("2", 2), ("@1005", 5)):
        cli("position", "reset", "job", "t", "--to", to, "--partition", "1", "--yes")
        assert cluster.positions.offsets("job")["t", 1] == offset
    cli("position", "reset", "job", "t", "--to", "11", "--yes", status=1)
    assert "has offsets 0 to 10, not 11" in cli.err
    cli("position", "reset", "job", "t", "--to", "earliest", status=2)
    missing = ("reset", "job", "missing", "--to", "earliest", "--yes")
    cli("--timeout", "2", "position", *missing, status=3)
    cli("position", "reset", "no/name", "t", "--to", "earliest", "--yes", status=1)
    assert cluster.positions.offsets("job")["t", 0] == 7
