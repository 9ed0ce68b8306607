"""Settings: priority of the sources, typos that are caught, sizes, and who may listen where."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from icecore.errors import ConfigurationError
from icecore.process.settings import (
    ByteSize,
    Settings,
    check_listen,
    is_loopback,
    load,
    load_from_arguments,
    split_address,
)
from tests.support import no_files


class ExampleSettings(Settings):
    """Settings of an example."""

    flags: ClassVar = {"metrics_listen": "--metrics"}

    data: str = Field(description="Data folder.")
    io_workers: int = Field(2, ge=1, description="I/O threads.")
    cache_bytes: ByteSize = Field(ByteSize(8 << 20), description="Cache.")
    metrics_listen: str = Field("", description="Where to serve metrics.")
    insecure_bind: bool = Field(False, description="Listen anywhere.")


def write(folder: Path, text: str) -> Path:
    path = folder / "icecore.toml"
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    path = write(tmp_path, '[node]\ndata = "file"\nio_workers = 3\ncache_bytes = "1MiB"\n')
    environ = {"ICECORE_IO_WORKERS": "4", "ICECORE_NODE__DATA": "env", "ICECORE_DATA": "plain"}
    assert load(ExampleSettings, path, {}, {}).io_workers == 3
    settings = load(ExampleSettings, path, {"io_workers": 5, "data": None}, environ)
    assert (settings.io_workers, settings.data, settings.cache_bytes) == (5, "env", 1 << 20)


def test_sections_of_others_and_files_without_sections(tmp_path: Path) -> None:
    shared = write(tmp_path, '[node]\ndata = "x"\n[coordinator]\nanything = 1\n')
    assert load(ExampleSettings, shared, {}, {}).data == "x"
    flat = write(tmp_path, '\ufeffdata = "y"\n')
    assert load(ExampleSettings, flat, {}, {}).data == "y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('data = "x"\nio_worker = 3\n', ["icecore.toml", "io_worker", "did you mean io_workers?"]),
        ('[node]\ndata = "x"\nzzz = 3\n', ["[node]", "zzz", "known are"]),
        ('[nod]\ndata = "x"\n', ["[nod]", "did you mean node?"]),
        ('data = "x"\n[node]\n', ["outside of a section"]),
        ('data = "x', ["not valid TOML"]),
        ("data = 1" + "0" * 5_000, ["not valid TOML"]),
        ('data = "x"\nio_workers = 0\n', ["icecore.toml", "io_workers", "greater than"]),
        ('data = "x"\ncache_bytes = "8 penguins"\n', ["cache_bytes"]),
        ("io_workers = 1\n", ["data is missing", "--data", "ICECORE_NODE__DATA"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(ExampleSettings, write(tmp_path, text), {}, {})
    assert all(part in caught.value.message for part in expected), caught.value.message


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load(ExampleSettings, tmp_path / "absent.toml", {}, {})


def test_unknown_variables_are_errors_only_in_our_own_section() -> None:
    assert load(ExampleSettings, None, {"data": "x"}, {"ICECORE_PORT": "tcp://1.2.3.4:5"})
    with pytest.raises(ConfigurationError, match=r"ICECORE_NODE__CACHE.*did you mean cache_bytes"):
        load(ExampleSettings, None, {"data": "x"}, {"ICECORE_NODE__CACHE": "1"})


def test_settings_are_frozen() -> None:
    settings = load(ExampleSettings, None, {"data": "x"}, {})
    with pytest.raises(ValueError, match="frozen"):
        settings.io_workers = 9  # type: ignore[misc]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 'data = "file"\n')
    argv = ["--config", str(path), "--metrics", "127.0.0.1:9", "--insecure-bind"]
    settings = load_from_arguments(ExampleSettings, "example", argv)
    assert (settings.data, settings.metrics_listen) == ("file", "127.0.0.1:9")
    assert settings.source_of("metrics_listen") == "flag --metrics"
    assert settings.source_of("cache_bytes") == "default"
    again = load_from_arguments(ExampleSettings, "example", [*argv, "--metrics-listen", "[::1]:9"])
    assert again.metrics_listen == "[::1]:9"
    assert settings.insecure_bind
    with pytest.raises(SystemExit) as ended:
        load_from_arguments(ExampleSettings, "example", ["--data", "x", "--show-config"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["cache_bytes"] == 8 << 20
    with pytest.raises(SystemExit) as ended:
        load_from_arguments(ExampleSettings, "example", ["--help"])
    assert "default 8MiB" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        load_from_arguments(ExampleSettings, "example", ["--config-schema"])
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False
    with pytest.raises(SystemExit) as ended:
        load_from_arguments(ExampleSettings, "example", ["--dat", "x"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True)),
        *(("127.8.9.1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)),
        *(("example.org", False), ("", False)),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_addresses() -> None:
    assert split_address("[::1]:70") == ("::1", 70)
    assert split_address("localhost:0") == ("localhost", 0)
    for bad in ("localhost", ":70", "a:b", "a:99999", ""):
        with pytest.raises(ConfigurationError):
            split_address(bad)
    check_listen("127.0.0.1:0", insecure_bind=False)
    check_listen("0.0.0.0:0", insecure_bind=True)
    with pytest.raises(ConfigurationError, match="--insecure-bind"):
        check_listen("0.0.0.0:0", insecure_bind=False)


@pytest.mark.parametrize(
    ("kind", "said"), [*no_files.KINDS.items(), ("large", "more than 1,048,576 bytes")]
)
def test_what_is_no_file_is_told_at_once(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(ExampleSettings, no_files.make(tmp_path / "x.toml", kind), {}, {})
