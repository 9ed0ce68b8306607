"""``python tests/support/typist.py``: runs commands and programs, each in a fork of this process.

It has imported all of the client and of the command line, which saves each of them most of a
second. A request is a line of JSON on stdin: the ``words`` of a command or a ``program``, the file
for what it prints, and ``stop_s`` for one without an end; the answer is its exit status. It runs
on any interpreter that has icecore, and so imports nothing else.
"""

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import icecore.blocking
from icecore.cli import app, commands


def main() -> None:
    """Until stdin ends."""
    for name in commands.COMMANDS:
        commands.load(name)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            run(asked)
        print(wait(child, asked["stop_s"]), flush=True)


def run(asked: dict[str, Any]) -> None:
    """In the child; ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore Ctrl-C
    printed = os.open(asked["printed"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    status = 0
    try:
        if asked["words"]:
            app.main(asked["words"])
        exec(compile(asked["program"], "block", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, stop_s: float) -> int:
    """Exit status; Ctrl-C after a while, if one is given."""
    end_s = time.monotonic() + stop_s
    while stop_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end_s:
            os.kill(child, signal.SIGINT)
            break
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


assert icecore.blocking.Producer  # the modules of the client are loaded by now
if __name__ == "__main__":
    main()
