"""The subject of a commit says where, and begins with a verb: ``area: verb object``.

Only the newest commits are looked at, and none where there is no history. The very last one may be
a server's, which tries a merge: it is looked at with the next.
"""

import re
import subprocess

import pytest

from tests.tidy.test_words import HEADLESS
from tests.tidy.tree import ROOT

NEWEST = 30
LENGTH_MAX = 90
SUBJECT = re.compile(r"[a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*: (?P<verb>[a-z]+) .*[^.]")
NO_VERBS = frozenset({"a", "an", "the", "no", "each", "all", "it", "there"})
NO_VERBS |= {each.lower() for each in HEADLESS}


def wrong(subject: str) -> str:
    """Return what is wrong with a subject; empty = nothing."""
    found = SUBJECT.fullmatch(subject)
    if found is None:
        return "it is not `area: verb object`, without a full stop"
    if found["verb"] in NO_VERBS:
        return f"it begins with {found['verb']}: begin with what the commit does"
    if len(subject) > LENGTH_MAX:
        return f"it has more than {LENGTH_MAX} characters"
    return ""


def test_newest_subjects_obey() -> None:
    command = ["git", "log", f"-{NEWEST}", "--skip=1", "--no-merges", "--format=%s"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [f"{each}: {why}" for each in done.stdout.splitlines() if (why := wrong(each))]
    assert found == []


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("node: sync folders before files", True),
        ("node, coordinator: rename beats", True),
        ("node sync folders", False),
        ("node: What syncs folders", False),
        ("node: what syncs folders", False),
        ("node: the folders are synced", False),
        ("node: sync folders.", False),
        ("node: sync " + "folders " * 12, False),
    ],
)
def test_a_subject_is_judged(subject: str, is_right: bool) -> None:
    assert (wrong(subject.strip()) == "") is is_right
