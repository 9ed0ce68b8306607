"""Each guard of docs/design/evidence.md is needed: a test fails without it. The rotation chooses.

A guard is one function that refuses. It is cheaper to show with a unit test than with a world.
"""

import subprocess
import sys

import pytest

from tests.support import evidence_table, guards, rotation

GUARDS = sorted({each for row in evidence_table.rows() for each in row.guards}, key=str)
GUARDS_PER_RUN = 5
TAKEN = rotation.take("guards of evidence", GUARDS, GUARDS_PER_RUN)


@pytest.mark.parametrize("guard", TAKEN, ids=str)
def test_a_guard_is_needed(guard: evidence_table.Guard) -> None:
    command = [sys.executable, "-m", "tests.support.guards", guard.function]
    done = subprocess.run(
        [*command, guards.path_of(guard.test)],
        cwd=guards.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"nobody notices that {guard.function} is gone:\n{done.stdout}"
    assert " failed" in done.stdout
