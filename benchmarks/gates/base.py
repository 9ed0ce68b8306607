"""An earlier tree of ours, measured beside this one: servers and client run with its own code.

A commit is checked out as a git worktree under ``build/base/``, which is kept: the next run with
the same commit finds it there. It runs in the environment of this tree, with its own folders in
front of all others. Where that lacks something the base needs, the caller names another
interpreter.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.harness.cases import ICECORE, Case

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("icecore", "replication", "node", "coordinator")
SERVER: Final = Path(__file__).with_name("base_server.py")
NAME_LENGTH: Final = 12
STOP_S: Final = 60.0


class BaseError(Exception):
    """A base tree can't be had or does not run here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The code that a child process runs."""

    root: Path
    commit: str
    python: str = sys.executable

    def command(self, module: str, *options: str) -> list[str]:
        """A module of this tree."""
        return [self.python, "-m", module, *options]

    def environment(self) -> dict[str, str]:
        """The environment of a child, whose imports look into this tree first."""
        folders = (self.root, *(self.root / each for each in PRODUCT[1:]))
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}

    def check(self) -> None:
        """Check that Python imports this tree, and no other one.

        Raises:
            BaseError: It is not.
        """
        code = (
            "import benchmarks.cluster, benchmarks.icecore_client, icecore_coordinator, "
            "icecore_node; print(icecore_node.__file__)"
        )
        done = subprocess.run(
            [self.python, "-c", code],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BaseError(
                f"the tree of {self.commit} does not run with {self.python}: {last}; "
                "make an environment with its dependencies and name it with --base-python"
            )
        if not Path(done.stdout.strip()).is_relative_to(self.root):
            raise BaseError(f"{self.python} imports {done.stdout.strip()}, not {self.root}")


def resolve(commit: str, repository: Path = ROOT) -> str:
    """The full name of a commit.

    Raises:
        BaseError: There is none of this name.
    """
    done = _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if done.returncode:
        raise BaseError(
            f"the base {commit!r} names no commit of {repository}; "
            "give a commit, branch or tag that `git log` knows"
        )
    return done.stdout.strip()


def check_out(commit: str, python: str = sys.executable, repository: Path = ROOT) -> Tree:
    """The tree of a commit, checked out unless it is there already.

    Raises:
        BaseError: There is no such commit, or git could not check it out.
    """
    full = resolve(commit, repository)
    short = full[:NAME_LENGTH]
    folder = repository / "build" / "base" / short
    if not _is_at(folder, full):
        shutil.rmtree(folder, ignore_errors=True)
        _git(repository, "worktree", "prune")  # of folders that were removed by hand
        done = _git(repository, "worktree", "add", "--force", "--detach", str(folder), full)
        if done.returncode:
            raise BaseError(f"git could not check out {short}: {done.stderr.strip()}")
    return Tree(folder, short, python)


def _is_at(folder: Path, commit: str) -> bool:
    """Return whether the folder is an unchanged worktree of the commit."""
    if not (folder / ".git").exists():
        return False
    if _git(folder, "rev-parse", "HEAD").stdout.strip() != commit:
        return False
    done = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return not done.returncode and not done.stdout.strip()


def is_same_product(tree: Tree, repository: Path = ROOT) -> bool:
    """Return whether both trees hold the same product, so that a ratio shows noise alone."""
    done = _git(repository, "diff", "--quiet", tree.commit, "--", *PRODUCT)
    return done.returncode == 0


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)


class BaseCluster:
    """A cluster of the base tree, as ``benchmarks.cluster.Icecore`` is one of this tree.

    A child process that runs the base's own code holds it, and is asked by lines of JSON.
    """

    warm_s = 1.0

    def __init__(self, name: str, tree: Tree, folder: Path, nodes: int) -> None:
        self.name = name
        self.nodes = nodes
        self._tree, self._folder = tree, folder
        self._process: subprocess.Popen[str] | None = None
        self._about: dict[str, Any] = {}

    def __enter__(self) -> Self:
        options = {"name": ICECORE, "folder": str(self._folder), "nodes": self.nodes}
        self._process = subprocess.Popen(
            [self._tree.python, "-P", str(SERVER), json.dumps(options)],
            cwd=self._tree.root,
            env=self._tree.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the runner, which ends it
        )
        try:
            self._about = self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    @property
    def bootstrap(self) -> str:
        """The coordinator's address."""
        return str(self._about["bootstrap"])

    @property
    def pids(self) -> dict[str, int]:
        """Pids by name of the coordinator and the nodes."""
        return dict(self._about["pids"])

    def lacks(self, case: Case) -> str:
        """See ``System``."""
        return ""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """See ``System``."""
        self._ask("create_topic", topic, partitions, rf, flush)

    def delete_topic(self, topic: str) -> None:
        """See ``System``."""
        self._ask("delete_topic", topic)

    def hold(self) -> bool:
        """Refuse, so that the runner stops this cluster, as it stops ours."""
        return False

    def go_on(self) -> None:
        """See ``System``."""

    def _ask(self, *words: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, Any]:
        """Raises RuntimeError: the base's process ended, or says that it failed."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the cluster of the base {self._tree.commit} has ended")
        found: dict[str, Any] = json.loads(line)
        if error := found.get("error"):
            raise RuntimeError(f"the base {self._tree.commit}: {error}")
        return found
