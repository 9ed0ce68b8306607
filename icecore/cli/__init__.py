"""The ``icecore`` command line; ``main`` is its entry point."""

import signal
import sys

_EXIT_INTERRUPTED = 130
_AGAIN_S = (0.02, 0.1)
"""When, and how often."""


def main() -> None:
    """Run the command line and end the process with its status."""
    sys.unraisablehook = _keep_interruptions
    signal.signal(signal.SIGALRM, _interrupt_again)
    try:
        from icecore.extras import as_one_line

        with as_one_line("icecore", "cli"):
            from icecore.cli.app import main as run  # other modules here are used without typer's

            run()
    except KeyboardInterrupt:  # while it was imported
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        # What is left to do takes a moment, and a Ctrl-C in it is no bug to be traced.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _keep_interruptions(ignored: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C that came where Python can't raise it, as in a callback of the garbage collector,
    comes again a moment later: else nothing would end the command."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, *_AGAIN_S)
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_again(_: int, __: object) -> None:
    """The timer runs until it gets here: its signal may come just before a wait, and not end it."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.raise_signal(signal.SIGINT)
