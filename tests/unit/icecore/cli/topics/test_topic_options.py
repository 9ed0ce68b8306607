"""Options of ``icecore topic create``, one for each setting: what is typed is what is sent."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from icecore.cli.app import main
from icecore.cli.topics import topic
from icecore.rpc import convert
from icecore.topic_settings import SETTINGS, FlushMode, Holds, Setting, SettingKind
from tests.support.cli_cluster import Cli, serving
from tests.support.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with serving("t", 1, []) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster.bootstrap, capsys)


def typed(row: Setting) -> tuple[list[str], Any]:
    """A value of the row as somebody types it, and as the message has it."""
    match row.kind:
        case SettingKind.NAMES:
            return ["a", "b"], ["a", "b"]
        case SettingKind.FLUSH:
            return ["async"], FlushMode.ASYNC
        case SettingKind.WORD:
            return [row.words[-1]], row.words[-1]
        case SettingKind.BYTES:
            return ["1MiB"], 1 << 20
        case _:
            number = max(row.low, 7)
            return [str(number)], number


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_sent_as_it_is_typed(cli: Cli, cluster: FakeCluster, name: str) -> None:
    row = SETTINGS[name]
    flag = (row.flags or (f"--{name.replace('_', '-')}",))[0]
    words, sent = typed(row)
    cli("topic", "create", "x", *(each for word in words for each in (flag, word)))
    assert convert.said(cluster.settings[-1]) == {name: sent}


def test_limits_may_be_none_and_what_is_not_typed_is_not_said(
    cli: Cli, cluster: FakeCluster
) -> None:
    cli("topic", "create", "x", "--retention-bytes", "-1", "--local-retention-ms", "-1")
    assert convert.said(cluster.settings[-1]) == {"retention_bytes": -1, "local_retention_ms": -1}
    cli("topic", "create", "y")
    assert convert.said(cluster.settings[-1]) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--engine", "bogus"),
        ("--flush", "SYNC"),
        ("--partitions", "0"),
        ("--segment-bytes", "8 penguins"),
        ("--retention-ms", "-2"),
        ("--min-insync-replicas", "many"),
    ],
)
def test_wrong_values_are_usage_errors(
    cli: Cli, cluster: FakeCluster, wrong: tuple[str, str]
) -> None:
    cli("topic", "create", "x", *wrong, status=2)
    assert wrong[0] in cli.err and not cluster.settings


def test_alter_offers_what_can_be_altered() -> None:
    offered = inspect.signature(topic.alter).parameters
    for name, row in SETTINGS.items():
        assert (name in offered) == (row.holds is not Holds.AT_CREATION)


def test_who_alters_partitions_is_told_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topic", "alter", "flights", "--partitions", "12"])
    assert "icecore topic add-partitions flights 12" in " ".join(capsys.readouterr().err.split())
