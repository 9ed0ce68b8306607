"""The places of files: no names of other packages, rooms with a purpose, tests beside the code."""

import ast
import re
import subprocess

import pytest

from tests.tidy.tree import FOLDERS, ROOT

UNIT = ROOT / "tests" / "unit"
FILES_MAX = 20
"""Modules of a folder of code, entry points apart: more are two rooms in one."""

# Where the tests of a folder of code are, by the first folder below tests/unit.
MIRRORED = {
    "icecore": "icecore",
    "replication": FOLDERS["icecore_replication"],
    "node": FOLDERS["icecore_node"],
    "coordinator": FOLDERS["icecore_coordinator"],
    "benchmarks": "benchmarks",
}


def test_no_python_below_folders_that_other_packages_own() -> None:
    """``proto`` and ``docker`` are import names of other packages, which a module could shadow."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("proto", "docker", "helm")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert not found


def test_folders_of_the_servers_hold_one_package_each() -> None:
    """``node``, ``coordinator``, ``replication`` are other projects' import names (ADR 0006)."""
    for package, folder in FOLDERS.items():
        if package != "icecore":
            assert not list((ROOT / folder).parent.glob("*.py")), folder


def test_no_folder_holds_more_files_than_a_reader_takes_in() -> None:
    """A folder of 20 files is read in one look; a longer list hides what belongs together."""
    found = {}
    for top in {*FOLDERS.values(), "benchmarks"}:
        for folder in (ROOT / top).rglob("*/"):
            files = [each for each in folder.glob("*.py") if not each.name.startswith("__")]
            if len(files) > FILES_MAX and folder.name != "v1":
                found[folder.relative_to(ROOT).as_posix()] = len(files)
    assert not found


def test_rooms_say_what_they_are_for() -> None:
    """The first line of a folder's ``__init__`` is for whoever looks for a room."""
    silent = [
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
        or not ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text()))
    ]
    assert not silent


def test_unit_tests_mirror_the_tree() -> None:
    """``tests/unit/<folder>/test_<file>[_<aspect>].py`` tests ``<folder>/<file>.py``."""
    lost = []
    for path in UNIT.rglob("test_*.py"):
        first, *rest = path.parent.relative_to(UNIT).parts or ("",)
        room = ROOT.joinpath(MIRRORED.get(first, "nowhere"), *rest)
        words = path.stem.removeprefix("test_").split("_")
        names = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
        if not any((room / f"{name}.py").exists() or (room / name).is_dir() for name in names):
            lost.append(path.relative_to(ROOT).as_posix())
    assert not lost


def test_asserts_stay_on() -> None:
    """Invariants are asserts; -O would switch them off without a word."""
    folders = ("docker", "helm", "scripts", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    switch = re.compile(r"PYTHONOPTIMIZE|\bpython[0-9.]*\s+(-\w+\s+)*-OO?\b")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in [ROOT / "Makefile", *files]
        if path.suffix != ".pyc" and switch.search(path.read_text(errors="replace"))
    ]
    assert not found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist: nobody knows what is tracked")
def test_only_text_is_tracked() -> None:
    """Binaries come in unseen with ``git add -A`` and stay in the history."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    binary = [path.name for path in paths if path.exists() and b"\0" in path.read_bytes()]
    assert paths
    assert not binary
