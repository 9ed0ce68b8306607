"""A fork that comes before the first use of ``icecore.blocking`` uses it as if there was none."""

import subprocess
import sys

FORK = """
import os
from icecore import blocking
from icecore.errors import UnavailableError

child = os.fork()
if not child:
    try:
        with blocking.Admin("127.0.0.1:1", timeout_s=2.0) as admin:
            admin.describe_cluster()
    except UnavailableError:
        os._exit(7)
    os._exit(1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_its_thread_starts_in_the_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
