"""One client process: does the job it gets as JSON, prints the result as JSON. See ``runner.py``.

    python -m benchmarks.client '{"system": "icecore", "act": "produce", …}'

A process of its own, so that its CPU time and memory are those of one case, and so that a peer's
client shares no interpreter with ours.
"""

import argparse
import importlib
import json

from benchmarks.harness.cases import OURS
from benchmarks.harness.workload import Job

CLIENTS = {
    **dict.fromkeys(OURS, "benchmarks.icecore_client"),
    "kafka": "benchmarks.peers.confluent",
    "nats": "benchmarks.peers.nats_client",
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", help="fields of benchmarks.harness.workload.Job, as JSON")
    job = Job.from_dict(json.loads(parser.parse_args().job))
    client = importlib.import_module(CLIENTS[job.system])
    print(json.dumps(client.run(job)), flush=True)


if __name__ == "__main__":
    main()
