"""The ``icecore`` command line; ``main`` is its entry point."""

import signal
import sys
import threading

_EXIT_INTERRUPTED = 130
_AGAIN_S = 0.02


def main() -> None:
    """Run the command line and end the process with its status."""
    sys.unraisablehook = _keep_interruptions
    try:
        from icecore.extras import as_one_line

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
        again = threading.Timer(_AGAIN_S, _interrupt)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt() -> None:
    """Send another signal, which ends a wait as well, unless the command has ended."""
    ident = threading.main_thread().ident
    if ident is not None and signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        signal.pthread_kill(ident, signal.SIGINT)
