"""A library that is missing is named with the extra that brings it."""

import ast
import tomllib
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError
from icecore.extras import EXTRAS, MissingExtraError, as_one_line, check, explained

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "used", "extra"),
    [
        ("pyarrow", "", "arrow"),
        ("pyarrow.compute", "server", "arrow"),
        ("rich", "", "cli"),
        ("pydantic", "server", "server"),
        ("grpc_health.v1", "", "server"),
    ],
)
def test_names_the_extra(name: str, used: str, extra: str) -> None:
    with pytest.raises(MissingExtraError) as raised, explained(used):
        raise ModuleNotFoundError("No module", name=name)
    assert str(raised.value).endswith(f"is not installed: pip install 'icecore[{extra}]'")


def test_modules_of_nobody_are_bugs_and_stay_what_they_are() -> None:
    with pytest.raises(ModuleNotFoundError) as raised, explained():
        raise ModuleNotFoundError("No module", name="icecore.nothing")
    assert not isinstance(raised.value, MissingExtraError)


def test_a_program_ends_with_one_line() -> None:
    with pytest.raises(SystemExit) as ended, as_one_line("icecore-node", "server"):
        raise ModuleNotFoundError("No module", name="uvloop")
    line = "icecore-node: uvloop is not installed: pip install 'icecore[server]'"
    assert ended.value.code == line


def test_who_starts_servers_looks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    check("server")
    monkeypatch.setitem(EXTRAS, "server", ("no_such_library",))  # type: ignore[index]
    with pytest.raises(ConfigurationError, match=r"icecore\[server\]"):
        check("server")


def test_clients_import_no_library_of_an_extra_at_the_top() -> None:
    brought = {name for names in EXTRAS.values() for name in names}
    late = {"cli", "spark", "process/settings.py", "process/status_page.py", "process/server.py"}
    found = []
    for path in (ROOT / "icecore").rglob("*.py"):
        where = path.relative_to(ROOT / "icecore").as_posix()
        if not where.startswith(tuple(late)):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
                    found += [(where, n) for n in names if n.split(".")[0] in brought]
    assert not found


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])
