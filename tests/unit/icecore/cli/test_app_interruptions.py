"""A Ctrl-C is kept, also where Python can't raise it."""

import subprocess
import sys

SCRIPT = """
import gc, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
import icecore.cli.app as app

def run():
    def interrupted(phase, info):  # as the collector's own callbacks are, at any moment
        gc.callbacks.remove(interrupted)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    gc.callbacks.append(interrupted)
    gc.collect()
    import time
    time.sleep(60)

app.main = run
import icecore.cli
icecore.cli.main()
"""


def test_an_interruption_in_a_callback_of_the_collector_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
