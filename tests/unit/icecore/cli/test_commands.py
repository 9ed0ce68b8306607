"""Commands are loaded when they are called, and every help is readable and ends with examples."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from icecore.cli.app import _hoist_globals, app, main
from icecore.cli.commands import COMMANDS, load, walk
from icecore.cli.examples import EXAMPLES
from tests.support.cli_cluster import serving

ALL = dict(pair for name in COMMANDS for pair in walk(name, load(name)))
LEAVES = [path for path, each in ALL.items() if not hasattr(each, "commands")]
TABS = 5
"""How often somebody presses TAB on a slow machine."""


def test_each_command_has_examples_and_each_example_a_command() -> None:
    assert set(EXAMPLES) == {*LEAVES, "dev"}


@pytest.mark.parametrize("example", [each for some in EXAMPLES.values() for each in some])
def test_examples_are_understood(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".icecore" / "node-1").mkdir(parents=True)
    (tmp_path / "icecore.toml").touch()
    lines: list[list[str]] = [[]]
    for word in shlex.split(example):
        if word in ("|", "&&", "<", ">"):
            lines.append([])
        else:
            lines[-1].append(word)
    for line in lines:
        if line[0] == "icecore":
            _parse(get_command(app), "icecore", _hoist_globals(line[1:]), None)


def _parse(command: Any, name: str, words: list[str], parent: Any) -> None:
    """As the command line would, without doing it."""
    context = command.make_context(name, words, parent=parent)
    rest = [*context._protected_args, *context.args]
    if rest and hasattr(command, "commands"):
        _parse(command.get_command(context, rest[0]), rest[0], rest[1:], context)


@pytest.mark.parametrize("path", ["", *ALL])
def test_help_fits_80_columns(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*path.split(), "-h"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    examples = text.partition("Examples:")[2].splitlines()
    long = [each for each in text.splitlines() if len(each) > 80 and each not in examples]
    assert not long
    assert not [each for each in examples if len(each) > 100]
    assert "…" not in text and "<bool>" not in text


def test_lines_of_the_help_are_those_of_the_commands() -> None:
    for name, (_, line) in COMMANDS.items():
        said = ALL[name].help
        assert said.splitlines()[0] == line, name


def test_help_loads_neither_numpy_nor_grpc() -> None:
    code = (
        "import sys\n"
        "from icecore.cli.app import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n"
        "    print([m for m in ('numpy', 'grpc', 'pydantic', 'rich') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_tab_completes_names_of_topics() -> None:
    with serving("flights", 1, []) as cluster:
        environment = {
            **os.environ,
            "_ICECORE_COMPLETE": "complete_bash",
            "COMP_WORDS": "icecore topic describe fl",
            "COMP_CWORD": "3",
            "ICECORE_BOOTSTRAP": cluster.bootstrap,
        }
        for _ in range(TABS):  # a shell waits no longer than a person would
            done = subprocess.run(
                [sys.executable, "-m", "icecore.cli"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.stdout:
                break
    assert done.stdout.split() == ["flights"], done.stderr
