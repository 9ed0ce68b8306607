"""Options of several commands: one spelling and one help text each, and many in one parameter."""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from icecore.cli.app import main
from icecore.cli.commands import COMMANDS, load, walk
from icecore.cli.options import in_place_of


def options_of_all_commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        for path, command in walk(name, load(name)):
            yield from ((path, each) for each in command.params)


@pytest.mark.parametrize("flag", ["--yes", "--dry-run"])
def test_an_option_of_several_commands_is_the_same_in_all(flag: str) -> None:
    found = [each for _, each in options_of_all_commands() if flag in each.opts]
    assert len(found) > 3
    assert len({(*each.opts, *each.secondary_opts, each.help, each.default) for each in found}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "fetch t",
        "query t",
        "explain query t",
        "explain fetch t",
        "segment list t",
        "topic delete-records t --before-offset 1",
        "position reset n t --to latest",
    ],
)
def test_a_negative_partition_is_refused_by_each_command(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--partition", "-1"])
    assert ended.value.code == 2
    assert "--partition" in capsys.readouterr().err


def test_options_stand_where_the_parameter_stood_and_make_its_value() -> None:
    rows = {"low": (int, 1), "high": (Annotated[int, typer.Option("--high", "-H")], 9)}
    seen: list[Any] = []

    @in_place_of("numbers", rows, lambda given: range(given["low"], given["high"]))
    def command(first: str, *, numbers: range, last: bool = False) -> None:
        seen.append((first, numbers, last))

    assert [*inspect.signature(command).parameters] == ["first", "low", "high", "last"]
    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["a", "-H", "4", "--last"]).exit_code == 0
    assert seen == [("a", range(1, 4), True)]
