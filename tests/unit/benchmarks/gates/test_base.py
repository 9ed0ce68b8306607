"""The base tree: its commit, its place, its code, and errors that say what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cluster import Missing
from benchmarks.gates import base
from benchmarks.gates.base import BaseCluster, BaseError, Tree, check_out, resolve
from benchmarks.harness.cases import BASE, Case
from benchmarks.harness.runner import Runner, Times
from benchmarks.harness.systems import Systems

CLUSTER = '''
"""A tiny tree: a cluster that remembers its topics in a file."""
from pathlib import Path

class Icecore:
    def __init__(self, name, folder, nodes):
        if nodes > 9:
            raise OSError("too many nodes")
        self.bootstrap, self.pids = f"{name}:{nodes}", {"node-1": 7}
        self.folder = Path(folder)

    def __enter__(self):
        self.folder.mkdir()
        return self

    def __exit__(self, *_):
        (self.folder / "stopped").touch()

    def create_topic(self, *words):
        (self.folder / "topic").write_text(repr(words))

    def delete_topic(self, topic):
        if topic == "absent":
            raise LookupError(f"no topic {topic}")
'''
EMPTY = ("icecore_client.py", "client.py")


def git(folder: Path, *words: str) -> str:
    """Commit under a fixed name, whatever this machine's git is configured to."""
    who = {
        f"GIT_{role}_{what}": "x@y"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    command = ["git", *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **who}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits; the later one changes the packages."""
    home = tmp_path / "home"
    for package in (
        "benchmarks",
        "icecore",
        "node/icecore_node",
        "coordinator/icecore_coordinator",
    ):
        (home / package).mkdir(parents=True)
        (home / package / "__init__.py").write_text("VERSION = 1\n")
    for name in EMPTY:
        (home / "benchmarks" / name).write_text("print('of the base')\n")
    (home / "benchmarks" / "icecore_client.py").write_text("")
    (home / "benchmarks" / "cluster.py").write_text(CLUSTER)
    (home / ".gitignore").write_text("build/\n")
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "-m", "first")
    (home / "icecore" / "__init__.py").write_text("VERSION = 2\n")
    git(home, "commit", "--quiet", "-a", "-m", "second")
    return home


def test_a_commit_is_checked_out_once_and_kept(repository: Path) -> None:
    tree = check_out("HEAD~1", repository=repository)
    assert tree.root == repository / "build" / "base" / tree.commit
    assert tree.commit == git(repository, "rev-parse", "--short=12", "HEAD~1")
    assert (tree.root / "icecore" / "__init__.py").read_text() == "VERSION = 1\n"
    (tree.root / "kept").touch()
    assert check_out("HEAD~1", repository=repository) == tree
    assert (tree.root / "kept").exists()
    assert git(repository, "status", "--porcelain") == ""


def test_a_base_that_was_changed_or_removed_is_made_anew(repository: Path) -> None:
    tree = check_out("HEAD~1", repository=repository)
    file = tree.root / "icecore" / "__init__.py"
    file.write_text("VERSION = 9\n")
    check_out("HEAD~1", repository=repository)
    assert file.read_text() == "VERSION = 1\n"
    subprocess.run(["rm", "-r", str(repository / "build")], check=True)  # as `make clean` does
    check_out("HEAD~1", repository=repository)
    assert file.read_text() == "VERSION = 1\n"


@pytest.mark.parametrize("name", ["nonsense", "HEAD~99", "--help", ""])
def test_an_unknown_commit_is_named(repository: Path, name: str) -> None:
    with pytest.raises(BaseError, match=r"names no commit of .*; give a commit"):
        check_out(name, repository=repository)
    assert not (repository / "build").exists()


def test_a_file_of_git_is_no_commit(repository: Path) -> None:
    blob = git(repository, "rev-parse", "HEAD:.gitignore")
    with pytest.raises(BaseError, match="names no commit"):
        resolve(blob, repository)


def test_both_sides_are_the_same_product_or_not(repository: Path) -> None:
    first, second = (check_out(name, repository=repository) for name in ("HEAD~1", "HEAD"))
    assert base.is_same_product(second, repository)
    assert not base.is_same_product(first, repository)
    (repository / "benchmarks" / "cluster.py").write_text("")  # no part of the product
    assert base.is_same_product(second, repository)
    (repository / "node" / "icecore_node" / "__init__.py").write_text("")
    assert not base.is_same_product(second, repository)


def test_its_own_code_is_what_runs(repository: Path) -> None:
    tree = check_out("HEAD~1", repository=repository)
    tree.check()
    code = "import icecore, icecore_node; print(icecore.VERSION, icecore_node.__file__)"
    done = subprocess.run(
        [tree.python, "-c", code],
        cwd=tree.root,
        env=tree.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", str(tree.root / "node/icecore_node/__init__.py")]
    assert tree.command("benchmarks.client", "{}") == [
        sys.executable,
        "-m",
        "benchmarks.client",
        "{}",
    ]


def test_a_tree_that_does_not_run_here_says_what_to_do(repository: Path) -> None:
    (repository / "benchmarks" / "icecore_client.py").write_text("import not_installed\n")
    git(repository, "commit", "--quiet", "-a", "-m", "third")
    with pytest.raises(BaseError, match=r"'not_installed'; make an environment .* --base-python"):
        check_out("HEAD", repository=repository).check()


def test_an_interpreter_that_takes_other_packages_is_refused(
    repository: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho /usr/lib/icecore_node/__init__.py\n")
    python.chmod(0o755)
    tree = check_out("HEAD", str(python), repository)
    with pytest.raises(BaseError, match=r"imports /usr/lib/icecore_node/__init__.py, not"):
        tree.check()


# --- its cluster ----------------------------------------------------------------------------------


def test_a_cluster_of_the_base_is_held_by_its_own_code(repository: Path, tmp_path: Path) -> None:
    tree, folder = check_out("HEAD~1", repository=repository), tmp_path / "data"
    with BaseCluster(BASE, tree, folder, 3) as cluster:
        assert (cluster.bootstrap, cluster.pids) == ("icecore:3", {"node-1": 7})
        cluster.create_topic("t", 16, 3, "sync")
        assert (folder / "topic").read_text() == "('t', 16, 3, 'sync')"
        with pytest.raises(RuntimeError, match="delete_topic: LookupError: no topic absent"):
            cluster.delete_topic("absent")
        cluster.create_topic("after", 1, 1, "sync")
        assert not cluster.hold() and cluster.lacks(Case("produce")) == ""
        assert not (folder / "stopped").exists()
    assert (folder / "stopped").exists()


def test_a_cluster_that_does_not_start_says_why(repository: Path, tmp_path: Path) -> None:
    tree = check_out("HEAD", repository=repository)
    starting = BaseCluster(BASE, tree, tmp_path / "data", 10)
    with pytest.raises(RuntimeError, match=f"the base {tree.commit}: OSError: too many nodes"):
        starting.__enter__()
    silent = BaseCluster(BASE, Tree(tree.root, tree.commit, "/bin/false"), tmp_path / "other", 1)
    with pytest.raises(RuntimeError, match=f"cluster of the base {tree.commit} has ended"):
        silent.__enter__()


def test_the_runner_runs_the_client_of_the_base(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "benchmarks" / "client.py").write_text(
        "import json, sys; import icecore\n"
        "job = json.loads(sys.argv[1])\n"
        "figures = {'version': icecore.VERSION}\n"
        "print(json.dumps({'figures': figures, 'processes': {}, 'job': job}))\n"
    )
    git(repository, "commit", "--quiet", "-a", "-m", "third")
    (repository / "icecore" / "__init__.py").write_text("VERSION = 99\n")
    monkeypatch.setattr("benchmarks.harness.runner.FREE_BYTES_MIN", 0)
    tree = check_out("HEAD", repository=repository)
    with Runner(tmp_path / "data", Times(0.1, 0.1), tree, in_turns=True) as runner:
        result = runner.run(BASE, Case("single"))
    assert result["figures"] == {"version": 2}
    assert result["job"]["system"] == "icecore"  # as the base calls it


def test_without_a_base_it_is_missing(tmp_path: Path) -> None:
    with Runner(tmp_path, Times()) as runner:
        with pytest.raises(Missing, match="BASE=<commit>"):
            runner.run(BASE, Case("single"))
        with pytest.raises(Missing, match="BASE=<commit>"):
            runner.lookup(is_base=True)


def test_ours_stay_beside_each_other_only_where_they_take_turns(
    repository: Path, tmp_path: Path
) -> None:
    tree = check_out("HEAD", repository=repository)
    for are_beside in (False, True):
        started: list[str] = []
        folder = tmp_path / str(are_beside)
        folder.mkdir()
        with Systems(folder, lambda s: started.append(s.name), tree, are_beside) as found:  # noqa: B023
            first = found.get(BASE, 3)
            found._running["icecore"] = (first, found._running[BASE][1].__class__())
            found.get("icecore", 3)
            assert found.is_running(first)
            assert (BASE in found._running) == are_beside
            found.stop_ours()
            assert not found._running
