"""Holds a cluster of the base tree: this file runs with that tree's folders in front of all others.

    PYTHONPATH=BASE:BASE/node:… python -P base_server.py '{"name": …, "folder": …, "nodes": …}'

Its first line on stdout says where the cluster is. Then each line of stdin is a call of the base's
``benchmarks.cluster.Icecore``, a JSON list, and gets a line as its answer. The end of stdin, and
SIGTERM, stop the cluster. It imports nothing of this tree.
"""

import json
import signal
import sys
from pathlib import Path
from types import FrameType

CALLS = ("create_topic", "delete_topic")


def main() -> None:
    """Entry point."""
    from benchmarks.cluster import Icecore  # the base's, by PYTHONPATH

    signal.signal(signal.SIGTERM, _interrupt)
    options = json.loads(sys.argv[1])
    with Icecore(options["name"], Path(options["folder"]), options["nodes"]) as cluster:
        _say({"bootstrap": cluster.bootstrap, "pids": cluster.pids})
        for line in sys.stdin:
            call, *words = json.loads(line)
            try:
                if call not in CALLS:
                    raise ValueError(f"no call {call}; there are {', '.join(CALLS)}")
                getattr(cluster, call)(*words)
            except Exception as error:
                _say({"error": f"{call}: {type(error).__name__}: {error}"})
            else:
                _say({})


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(found: object) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
