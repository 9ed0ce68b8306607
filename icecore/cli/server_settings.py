"""``python -m icecore.cli.server_settings MODULE:CLASS [FILE]``: a server's settings, by itself.

The client package imports no server. ``icecore config`` starts this in a process of its own, which
imports the settings class by name and prints, as JSON, the schema of its settings, and each of them
with the value that a server would take from the file and this environment, and where it is from.
"""

import importlib
import json
import sys

from icecore.errors import ConfigurationError
from icecore.extras import as_one_line

with as_one_line("icecore", "server"):
    from icecore.process.settings import effective


def main() -> None:
    """Ends with status 1 and one line on stderr when the settings are wrong."""
    module, _, name = sys.argv[1].partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
        settings, absent = effective(cls, sys.argv[2] if sys.argv[2:] else None, {})
        rows = [
            {
                "setting": name,
                "value": None if name in absent else value,
                "from": "" if name in absent else source,
                "meaning": meaning,
            }
            for name, value, source, meaning in settings.listed()
        ]
        print(json.dumps({"settings": rows, "schema": cls.model_json_schema()}))
    except ImportError as error:
        sys.exit(f"the server is not installed here ({error}): pip install 'icecore[server]'")
    except ConfigurationError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
