"""``python -m icecore.cli.server_settings MODULE:CLASS …``: a server's settings, shown by itself.

The client package imports no server. ``icecore config`` starts this in a process of its own, which
imports the settings class by name and hands the other arguments to its command line.
"""

import importlib
import sys

from icecore.errors import ConfigurationError
from icecore.process.settings import load_from_arguments


def main() -> None:
    """Ends with status 1 and one line on stderr when the settings are wrong."""
    module, _, name = sys.argv[1].partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
        load_from_arguments(cls, "icecore config", sys.argv[2:])
    except ImportError as error:
        sys.exit(f"the server is not installed here ({error}): pip install 'icecore[server]'")
    except ConfigurationError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
