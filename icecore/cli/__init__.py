"""The ``icecore`` command line; ``main`` is its entry point."""

import _thread
import signal
import sys
import threading

_EXIT_INTERRUPTED = 130
_AGAIN_S = 0.02


def main() -> None:
    """Run the command line and end the process with its status."""
    from icecore.extras import as_one_line

    sys.unraisablehook = _keep_interruptions
    try:
        with as_one_line("icecore", "cli"):
            from icecore.cli.app import main as run  # other modules here are used without typer's

            run()
    except KeyboardInterrupt:  # while it was imported
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        # What is left to do takes a moment, and a Ctrl-C in it is no bug to be traced.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _keep_interruptions(ignored: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C that came where Python can't raise it, as in a callback of the garbage collector,
    comes again a moment later: else nothing would end the command."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        again = threading.Timer(_AGAIN_S, _thread.interrupt_main)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)
