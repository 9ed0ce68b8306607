"""The ``icecore`` command line; ``main`` is its entry point."""

import signal
import sys

_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its status."""
    from icecore.extras import as_one_line

    try:
        with as_one_line("icecore", "cli"):
            from icecore.cli.app import main as run  # other modules here are used without typer's

            run()
    except KeyboardInterrupt:  # while it was imported
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        # What is left to do takes a moment, and a Ctrl-C in it is no bug to be traced.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
