"""Tables of settings: from a file, the environment and flags, and the errors that name a key."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from icecore.errors import ConfigurationError
from icecore.process.settings import Settings, TableSettings, load, load_from_arguments


class Waits(TableSettings):
    """A table that hardly anybody needs."""

    is_rare: ClassVar[bool] = True

    look_ms: int = Field(1_000, ge=10, le=60_000, description="Look this often.")
    retry_ms: int = Field(200, ge=1, description="Try again after this time.")


class Defaults(TableSettings):
    """A table like any other."""

    partitions: int = 0


class ServerSettings(Settings):
    """Settings of a server."""

    data: str = Field("d", description="Data folder.")
    waits: Waits = Field(Waits(), description="A table [node.waits].")
    defaults: Defaults = Field(Defaults(), description="A table [node.defaults].")


FILE = "[node]\n[node.waits]\nlook_ms = 50\nretry_ms = 70\n"


def read(
    tmp_path: Path, environ: dict[str, str], text: str = FILE, **flags: object
) -> ServerSettings:
    path = tmp_path / "icecore.toml"
    path.write_text(text)
    return load(ServerSettings, path, flags, environ)


def test_each_key_counts_for_itself(tmp_path: Path) -> None:
    assert read(tmp_path, {}).waits == Waits(look_ms=50, retry_ms=70)
    environ = {
        "ICECORE_NODE__WAITS__RETRY_MS": "80",  # wins over the next, which says several
        "ICECORE_NODE__WAITS": '{"retry_ms": 90}',
        "ICECORE_NODE__DEFAULTS__PARTITIONS": "6",
    }
    settings = read(tmp_path, environ)
    assert (settings.waits, settings.defaults.partitions) == (Waits(look_ms=50, retry_ms=80), 6)
    assert settings.defaults.model_fields_set == {"partitions"}
    flagged = read(tmp_path, environ, waits='{"retry_ms": 100}')
    assert flagged.waits == Waits(look_ms=50, retry_ms=100)


def test_where_a_key_was_said(tmp_path: Path) -> None:
    settings = read(tmp_path, {"ICECORE_NODE__WAITS__RETRY_MS": "80"}, "[node.waits]\n")
    rows = {name: (value, source, meaning) for name, value, source, meaning in settings.listed()}
    assert list(rows) == ["data", "waits.look_ms", "waits.retry_ms", "defaults"]
    assert rows["waits.look_ms"] == (1_000, "default", "Look this often.")
    variable = "environment variable ICECORE_NODE__WAITS__RETRY_MS"
    assert rows["waits.retry_ms"] == (80, variable, "Try again after this time.")
    assert rows["defaults"] == ({"partitions": 0}, "default", "A table [node.defaults].")
    assert "[node]" in read(tmp_path, {}).source_of("waits.look_ms")


@pytest.mark.parametrize(
    ("environ", "text", "expected"),
    [
        (
            {},
            "[node.waits]\nlok_ms = 5\n",
            ["[node]", "waits.lok_ms", "did you mean waits.look_ms"],
        ),
        ({}, "[node.waits]\nlook_ms = 5\n", ["[node]", "waits.look_ms = 5", "greater than"]),
        ({}, "[node.waits]\nlook_ms = 60001\n", ["waits.look_ms = 60001", "less than"]),
        ({}, "[node.waits]\nlook_ms = 'x'\n", ["waits.look_ms = 'x'", "integer"]),
        ({}, "[node]\nwaits = 5\n", ["[node]", "waits = 5", "not a table"]),
        ({}, "[waits]\nlook_ms = 50\n", ["unknown section [waits]"]),
        ({"WAITS__LOK_MS": "5"}, "", ["NODE__WAITS__LOK_MS", "did you mean waits.look_ms"]),
        ({"WAITS__LOOK_MS": "5"}, FILE, ["NODE__WAITS__LOOK_MS: waits.look_ms = '5'", "greater"]),
        ({"WAITS": "no JSON"}, "", ["NODE__WAITS", "not a JSON object"]),
        ({"WAITS": "[1]"}, "", ["NODE__WAITS", "not a table"]),
        ({"DATA__X": "1"}, "", ["NODE__DATA__X", "unknown setting data__x"]),
        ({"WAIT__LOOK_MS": "50"}, "", ["NODE__WAIT__LOOK_MS", "unknown setting"]),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, environ: dict[str, str], text: str, expected: list[str]
) -> None:
    variables = {f"ICECORE_NODE__{name}": value for name, value in environ.items()}
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, variables, text)
    assert all(part in caught.value.message for part in expected), caught.value.message


def test_a_rare_table_is_no_flag_that_help_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_from_arguments(ServerSettings, "example", ["--help"])
    shown = capsys.readouterr().out
    assert "--defaults" in shown and "--waits" not in shown and "icecore config show" in shown
    with pytest.raises(SystemExit):
        load_from_arguments(
            ServerSettings, "example", ["--waits", '{"look_ms": 90}', "--show-config"]
        )
    assert json.loads(capsys.readouterr().out)["waits"] == {"look_ms": 90, "retry_ms": 200}
