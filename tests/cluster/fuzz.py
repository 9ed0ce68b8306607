"""``python -m tests.cluster.fuzz --minutes 60 [--seed 7] [--only NodeService/Open]``: the long form
of ``test_fuzz``. Each round has a cluster and a seed of its own; a bad one keeps its folder."""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from icecore.dev import LocalCluster
from tests.cluster import fuzz_stage
from tests.support.clusters import NODES, check_logs, end
from tests.support.fast import FAST

ROUND_S = 300.0


async def one_round(folder: Path, seed: int, seconds: float, only: str = "") -> fuzz_stage.Verdict:
    """A new cluster, messages for some seconds, and the verdict."""
    os.environ |= FAST
    settings = fuzz_stage.settings_of(folder)
    cluster = LocalCluster(folder / "cluster", NODES, node_settings=settings).start()
    try:
        verdict = await fuzz_stage.Fuzz(cluster, seed, only).run(seconds)
    finally:
        end(cluster)
    try:
        check_logs(cluster)
    except AssertionError as error:
        verdict.found.append(f"a loop caught an exception: {error}")
    return verdict


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="of all rounds")
    parser.add_argument("--seed", type=int, help="of the first round; else the clock's")
    parser.add_argument("--only", default="", help="part of a target: method, field or way")
    given = parser.parse_args(arguments)
    seed = int(time.time()) if given.seed is None else given.seed
    return asyncio.run(_rounds(60 * given.minutes, seed, given.only))


async def _rounds(seconds: float, seed: int, only: str) -> int:
    until_s, bad = time.monotonic() + seconds, 0
    while (left_s := until_s - time.monotonic()) > 1:
        folder = Path(tempfile.mkdtemp(prefix="icecore-fuzz-"))
        verdict = await one_round(folder, seed, min(ROUND_S, left_s), only)
        print(verdict, flush=True)
        if verdict.found:
            print(f"kept {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        bad += bool(verdict.found)
        seed += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
