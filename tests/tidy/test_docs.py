"""Prose names only what there is: files, commands, targets, settings, rules, identifiers."""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import pytest

from tests.tidy.names import (
    broken_links,
    production_prose,
    unclear_files,
    unclear_folders,
    unknown_commands,
    unknown_files,
    unknown_identifiers,
    unknown_members,
    unknown_metrics,
    unknown_modules,
    unknown_rules,
    unknown_settings,
    unknown_targets,
    unknown_tests,
    without_links,
)
from tests.tidy.tree import ROOT, all_modules

GENERATED = tuple(f"docs/reference/{name}.md" for name in ("settings", "commands", "metrics"))
"""Made of what there is: `make check` compares them with the code, which joins some names."""
DOCS = (
    "README.md",
    "CONTRIBUTING.md",
    *(
        name
        for folder in ("docs", "tests")
        for path in sorted((ROOT / folder).rglob("*.md"))
        if (name := path.relative_to(ROOT).as_posix()) not in GENERATED
        and not name.startswith("docs/adr/")
    ),
)
"""Decisions are left as they were taken."""
ABOUT = {
    "docs/design/protocol.md": ("replication/icecore_replication/",),
    **{f"tests/{each}/README.md": (f"tests/{each}/",) for each in ("model", "simulation", "chaos")},
}
"""The folder that a document is about: there a bare name of a file is clear."""

DRIFTED: frozenset[tuple[str, str]] = frozenset()
"""(file, name) of what is not right yet in files that others change now. It is to become empty."""

NOT_OURS = frozenset(
    {
        ("docs/start.md", ".icecore/"),  # made by icecore dev
        ("docs/spark-jobs.md", "build/spark/icecore_jobs.py"),  # made by the job package
        ("docs/spark-jobs.md", "icecore_jobs.py"),
        ("docs/performance.md", "build/base/"),  # made by the gates
        ("docs/spark.md", "Trigger.AvailableNow"),  # of Spark
        ("docs/spark-jobs.md", "icecore.spark.job"),  # the schema of a report
        ("docs/reference/glossary.md", "last_offset"),  # named because it is not used
        ("docs/reference/glossary.md", "max_offset"),
    }
)
"""(document, name) of names that a document speaks of because there is no such thing."""

Finder = Callable[[str], Iterator[tuple[int, str]]]
IN_DOCUMENTS: tuple[Finder, ...] = (
    unclear_folders,
    unknown_files,
    unknown_modules,
    unknown_targets,
    unknown_commands,
    unknown_settings,
    unknown_rules,
    unknown_identifiers,
    unknown_members,
    unknown_metrics,
    unknown_tests,
)


def near_nothing(text: str) -> Iterator[tuple[int, str]]:
    """Files that are unclear to who knows nothing of the folder that the text is about."""
    return unclear_files(text, ())


def in_the_readme(text: str) -> Iterator[tuple[int, str]]:
    """Links of README.md that lead nowhere."""
    return broken_links("README.md", text)


def _problems() -> Iterator[tuple[str, int, str, str]]:
    for path in DOCS:
        text = (ROOT / path).read_text()
        for line, name in unclear_files(without_links(text), ABOUT.get(path, ())):
            yield path, line, name, "unclear_files"
        for line, name in broken_links(path, text):
            yield path, line, name, "broken_links"
        for finder in IN_DOCUMENTS:
            for line, name in finder(text):
                yield path, line, name, finder.__name__
    for module, start, text in production_prose():
        folder = PurePosixPath(module.path).parent.as_posix() + "/"
        for line, name in unclear_files(text, (folder,)):
            yield module.path, start + line - 1, name, "unclear_files"
        for finder in (unknown_targets, unknown_commands, unknown_members):
            for line, name in finder(text):
                yield module.path, start + line - 1, name, finder.__name__
    for each in all_modules():
        if not each.path.startswith("tests/tidy/"):
            for line, name in unknown_rules(each.text):
                yield each.path, line, name, "unknown_rules"


def test_prose_names_what_there_is() -> None:
    excused = DRIFTED | NOT_OURS
    found = list(_problems())
    wrong = [
        f"{path}:{line}: {name} ({kind})"
        for path, line, name, kind in found
        if (path, name) not in excused
    ]
    assert not wrong, "\n".join(wrong)
    unused = excused - {(path, name) for path, _, name, _ in found}
    assert not unused, "take these off the lists"


@pytest.mark.parametrize(
    ("finder", "text"),
    [
        (near_nothing, "see `roles/leaders.py`"),
        (near_nothing, "see node/icecore_node/leader.py"),
        (near_nothing, "``leader.py``: there are several"),
        (near_nothing, "| `simulation/faultz_*.py` |"),
        (near_nothing, "`rows.py` of `icecore/spark/`\n\n`rows.py` again"),
        (near_nothing, "`spark/runs/folder.py`, `spark/jobs/files.py`, `export.py`"),
        (in_the_readme, "[start](docs/stars.md)"),
        (in_the_readme, "[start](docs/start.md#first-step)"),
        (unclear_folders, "in `tests/simulations/`"),
        (unclear_folders, "```\nnode/  io/ roles/   what it does\n```"),
        (unknown_files, "`tests/rotations.txt`"),
        (unknown_modules, "`python -m tests.simulation.mutant`"),
        (unknown_modules, "icecore_node.serving.roles"),
        (unknown_members, "`Node.leaves` and `LeaderCore.step(ProduceReceived)`"),
        (unknown_targets, "run `make checks`"),
        (unknown_targets, "```\nmake chaoss SECONDS=5\n```"),
        (unknown_commands, "`icecore topic describes flights`"),
        (unknown_commands, "```\nicecore topic create x --partition 6\n```"),
        (unknown_commands, "```\n.venv/bin/icecore dev --node 3\n```"),
        (unknown_commands, "```\nicecore-node --data x \\\n  --listens y\n```"),
        (unknown_settings, "| what | setting |\n|---|---|\n| a | `tail_cache_byte` |"),
        (unknown_settings, "| what | argument |\n|---|---|\n| a | `linger_s` |"),
        (unknown_rules, "as R999 says"),
        (unknown_identifiers, "`a_name_of_nothing`"),
        (unknown_metrics, "`rate(icecore_nothing_total[5m])`"),
        (unknown_tests, "unit `reported_state`, `nothing_at_all`; cluster `cli`"),
    ],
)
def test_rule_bites(finder: Finder, text: str) -> None:
    assert len(list(finder(text))) == 1


@pytest.mark.parametrize(
    ("finder", "text"),
    [
        (near_nothing, "`replication/leader.py`, `tests/simulation/faults_*.py`, docs/produce.md"),
        (near_nothing, "# a\nin `icecore_node/replication/`, `leader.py` and `follower.py`"),
        (near_nothing, "test_<file>.py and https://example.org/x.md"),
        (in_the_readme, "[start](docs/start.md#first-records), [x](https://example.org/x.md)"),
        (unclear_folders, "```\nmake test  # runs tests/unit/ and/or others, if/else\n```"),
        (unknown_files, "`tests/rotation.txt`, tests/unit/replication/golden/*.bin"),
        (unknown_modules, "`python -m tests.simulation.run`, icecore.errors.IcecoreError"),
        (unknown_members, "`Timing.return_wait_ms`, `UNKNOWN`, `Node`"),
        (unknown_metrics, "`rate(icecore_group_seconds_bucket[5m])`, icecore_node/node.py"),
        (unknown_targets, "```\nicecore fetch t  # retries make no duplicates\n```"),
        (unknown_commands, "`icecore --json topic list --deleted --timeout 3`, `icecore.dev.X`"),
        (unknown_commands, "`icecore-node inspect /var/lib/icecore`"),
        (unknown_settings, "| what | rule |\n|---|---|\n| a | `tail_cache_byte` |"),
        (unknown_rules, "R1, R29-R33, `R2D2`"),
    ],
)
def test_rule_allows(finder: Finder, text: str) -> None:
    assert not list(finder(text))
