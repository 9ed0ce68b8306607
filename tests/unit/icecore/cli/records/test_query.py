"""``icecore query``, ``explain`` and filtered ``fetch``, on a cluster that is not one."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from icecore import Producer
from icecore.cli.records.query import EXIT_INCOMPLETE, parse_continuation, planned_long_ago
from icecore.client.types import LookupPage
from icecore.errors import UnavailableError
from tests.support.cli_cluster import Cli
from tests.support.fake_cluster import FakeCluster

LONG_S = 20.0
ROWS: list[dict[str, Any]] = [
    {"value": b"0", "key": b"N1", "tags": ("UA", "EWR"), "timestamp_ms": 1_000},
    {"value": b"1", "key": b"N2", "tags": ("AA",), "timestamp_ms": 2_000},
    {"value": b"2", "key": b"N1", "tags": ("AA", "EWR"), "timestamp_ms": 3_000},
    {"value": b"3", "key": b"\xff\xfe", "headers": {"order": b"7"}, "timestamp_ms": 4_000},
]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two segments on a loop of its own, for the command line has one, too."""
    started, stop = threading.Event(), threading.Event()
    found: list[FakeCluster] = []

    async def serve() -> None:
        async with FakeCluster(nodes=2) as fake:
            (partition,) = fake.add_topic("t")
            async with Producer(fake.bootstrap, net=fake.net) as producer:
                for number, row in enumerate(ROWS):
                    await producer.send_and_wait("t", **row)
                    if number == 1:
                        partition.open(2, (2,))
            found.append(fake)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(LONG_S)
    yield found[0]
    stop.set()
    thread.join()


@pytest.fixture
def cli(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster.bootstrap, capsys)


FOUND: list[tuple[Sequence[str], list[str]]] = [
    ((), ["0", "1", "2", "3"]),
    (("--key", "N1"), ["0", "2"]),
    (("--key", "N1", "--key", "N2"), ["0", "1", "2"]),
    (("--key-base64", "//4="), ["3"]),
    (("--tag", "UA", "--tag", "AA"), ["0", "1", "2"]),
    (("--tag-all", "AA", "--tag-all", "EWR"), ["2"]),
    (("--tag-none", "EWR"), ["1", "3"]),
    (("--header", "order=7"), ["3"]),
    (("--header", "order=8"), []),
]
FOUND_BY_QUERY: list[tuple[Sequence[str], list[str]]] = [
    *FOUND,
    (("--newest-first", "-n", "3"), ["3", "2", "1"]),
    (("--from-event-time", "1970-01-01T00:00:02Z", "--to-event-time", "4000"), ["1", "2"]),
    (("--from-append-time", "1001", "--to-append-time", "1003"), ["1", "2"]),
    (("--from-offset", "1", "--to-offset", "3"), ["1", "2"]),
    (("--id", "0@2"), ["2"]),
    (("--id", "0@9"), []),
    (("--partition", "0", "-n", "1", "--all"), ["0", "1", "2", "3"]),
]


def test_queries(cli: Cli) -> None:
    for options, wanted in FOUND_BY_QUERY:
        assert cli.values("query", "t", *options) == wanted, options
        assert cli.err.startswith("complete; ")


def test_filtered_fetches(cli: Cli) -> None:
    for options, wanted in FOUND:
        assert cli.values("fetch", "t", *options) == wanted, options


def test_pages(cli: Cli) -> None:
    found, more = [], list[str]()
    while True:
        found += cli.values("query", "t", "--tag", "EWR", "-n", "1", *more)
        if "--continue" not in cli.err:
            break
        more = ["--continue", cli.err.split("--continue ")[1].strip()]
        assert parse_continuation(more[1])
    assert found == ["0", "2"]


def test_what_can_not_be_searched_is_said(cli: Cli, cluster: FakeCluster) -> None:
    async def fail(number: int, method: str) -> None:
        if number == 1 and method == "_Query":
            raise UnavailableError("out of order")

    cluster.before_call = fail
    for command in ("query", "explain query"):
        out = cli(*command.split(), "t", status=EXIT_INCOMPLETE)
        assert "out of order" in cli.err or "out of order" in out
    assert cli.values("query", "t", status=EXIT_INCOMPLETE) == ["2", "3"]
    assert "not complete" in cli.err
    assert "partition 0 from 0 to 2" in cli.err
    assert "1 unavailable" in cli.err
    assert cli("query", "t", "--id", "0@1", "-q", status=EXIT_INCOMPLETE) == ""
    assert "not complete" in cli.err


def test_explain(cli: Cli, cluster: FakeCluster) -> None:
    for command in ("query", "fetch"):
        said = json.loads(cli("explain", command, "t", "--tag", "AA"))
        assert said["complete"] is True
        assert said["analyzed"] is False
        assert said["records"] == 0
        assert [each["outcome"] for each in said["segments"]] == ["scan", "scan"]
        assert said["data_bytes"] == sum(each["data_bytes"] for each in said["segments"]) > 0
        assert all(each.explain_only for each in cluster.queries)
        cluster.queries.clear()
        said = json.loads(cli("explain", command, "t", "--tag", "AA", "--analyze"))
        assert said["analyzed"] is True
        assert said["records"] == 2
        assert said["elapsed_ms"] > 0
        assert not any(each.explain_only for each in cluster.queries)
        cluster.queries.clear()
    said = json.loads(cli("explain", "fetch", "t", "--from", "2", "--key", "N1"))
    assert len(said["segments"]) == 1


def test_explained_for_people(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    out = cli("explain", "query", "t", "--analyze")
    assert "data bytes" in out
    assert "0–2" in out
    assert "scan" in out
    assert "4 records in" in cli.err


def test_how_old_the_plan_was(cli: Cli, cluster: FakeCluster) -> None:
    assert json.loads(cli("explain", "query", "t"))["planned_age_ms"] < 3_000
    cli("query", "t")
    assert "ago" not in cli.err
    cluster.ages_ms["GetMetadata"] = 75_000
    assert json.loads(cli("explain", "query", "t"))["planned_age_ms"] >= 75_000
    cli("query", "t")
    assert "planned on what was known 75." in cli.err and "no coordinator answers" in cli.err


WRONG: list[Sequence[str]] = [
    ("query", "t", "--header", "order"),
    ("query", "t", "--header", "=7"),
    ("query", "t", "--tag", ""),
    ("query", "t", "--key-base64", "%"),
    ("query", "t", "--id", "0"),
    ("query", "t", "--id", "x@1"),
    ("query", "t", "--id", "0@-1"),
    ("query", "t", "--id", "0@1", "--key", "k"),
    ("query", "t", "--id", "0@1", "--from-offset", "1"),
    ("query", "t", "-n", "0"),
    ("query", "t", "-n", "10001"),
    ("query", "t", "--from-event-time", "yesterday"),
    ("query", "t", "--from-offset", "-1"),
    ("query", "t", "--continue", "ä"),
    ("explain", "fetch", "t", "--from", "latest"),
]
REFUSED: list[Sequence[str]] = [
    ("query", "t", "--from-offset", "5", "--to-offset", "5"),
    ("query", "t", "--from-event-time", "5", "--to-event-time", "4"),
    ("query", "t", "--from-append-time", "5", "--to-append-time", "5"),
    ("query", "t", "--partition", "1"),
    ("query", "t", "--continue", "QUJD"),
    ("query", "t", *(word for n in range(101) for word in ("--tag", str(n)))),
    ("fetch", "t", *(word for n in range(1001) for word in ("--key", str(n)))),
]


def test_bad_options(cli: Cli, cluster: FakeCluster) -> None:
    for arguments in WRONG:
        cli(*arguments, status=2)
    for arguments in REFUSED:
        cli(*arguments, status=1)
        assert len(cli.err.strip().splitlines()) == 1, cli.err
    cli("query", "nowhere", status=3)
    assert not cluster.queries


@pytest.mark.parametrize(("age_ms", "took_ms", "is_told"), [(3_300, 3_200, 0), (9_000, 100, 1)])
def test_a_long_search_says_nothing_about_coordinators(
    age_ms: int, took_ms: float, is_told: int
) -> None:
    page = LookupPage((), True, {}, (), b"", age_ms)
    assert len(planned_long_ago([page], took_ms)) == is_told
