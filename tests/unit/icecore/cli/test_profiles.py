"""Profiles of clusters: which one is taken, and what is refused."""

from pathlib import Path

import pytest

from icecore.cli.profiles import Profile, load
from icecore.errors import ConfigurationError
from tests.support import no_files

FILE = """
profile = "near"

[profiles.near]
bootstrap = "127.0.0.1:7500"

[profiles.far]
bootstrap = "c1:7400,c2:7400"
timeout_s = 5
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "icecore").mkdir()
    return tmp_path / "icecore" / "config.toml"


def test_without_a_file_there_are_the_defaults(path: Path) -> None:
    assert load("") == Profile("127.0.0.1:7400", 30.0)
    with pytest.raises(ConfigurationError, match="no profile 'far'"):
        load("far")


def test_the_file_names_the_usual_one(path: Path) -> None:
    path.write_text("\ufeff" + FILE, "utf-8")  # as editors of Windows begin it
    assert load("") == Profile("127.0.0.1:7500", 30.0)
    assert load("far") == Profile("c1:7400,c2:7400", 5.0)
    with pytest.raises(ConfigurationError, match="there are: far, near"):
        load("fra")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile =", "not valid TOML"),
        ("\x80", "not valid TOML"),
        ("bootstrap = 'x:1'", "unknown key bootstrap"),
        ("profile = 3", "profile is a name"),
        ("profiles = 3", "profile is a name"),
        ("profile = 'a'\nprofiles.a = 3", "is not a table"),
        ("profile = 'a'\n[profiles.a]\nbootstrp = 'x'", "unknown key bootstrp"),
        ("profile = 'a'\n[profiles.a]\nbootstrap = 3", "bootstrap = 3"),
        ("profile = 'a'\n[profiles.a]\nbootstrap = ''", "bootstrap = ''"),
        ("profile = 'a'\n[profiles.a]\ntimeout_s = true", "timeout_s = True"),
        ("profile = 'a'\n[profiles.a]\ntimeout_s = -1", "not from 0.1"),
        ("profile = 'a'\n[profiles.a]\ntimeout_s = 1" + "0" * 400, "not from 0.1"),
        ("profile = 'a'\n[profiles.a]\ntimeout_s = 1" + "0" * 5_000, "not valid TOML"),
        ("profile = " + "[" * 5_000, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(path: Path, text: str, said: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=said) as caught:
        load("")
    assert "config.toml" in caught.value.message


def test_a_file_that_is_out_of_reach_is_missed_only_by_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home folder of somebody else has mode 0700."""

    def refuse(each: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(each))

    monkeypatch.setattr(Path, "stat", refuse)
    notes: list[str] = []
    assert load("", notes.append) == Profile()
    assert notes == [f"{path} can't be read (Permission denied): going on without it"]
    with pytest.raises(ConfigurationError, match=r"no profile 'far': .*Permission denied"):
        load("far")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(each: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    notes: list[str] = []
    assert load("", notes.append) == Profile()
    assert not notes
    with pytest.raises(ConfigurationError, match="set HOME or XDG_CONFIG_HOME"):
        load("far")


@pytest.mark.parametrize("home", ["/nonexistent", "/dev/null", "relative", ""])
def test_a_home_that_is_no_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    assert load("") == Profile()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "large"])
def test_what_is_no_file_is_told_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "icecore").mkdir()
    no_files.make(tmp_path / "icecore" / "config.toml", kind)
    notes: list[str] = []
    assert load("", notes.append) == Profile()
    assert len(notes) == 1 and "can't be read" in notes[0]
    with pytest.raises(ConfigurationError, match=r"no profile 'far': .* can't be read"):
        load("far")
