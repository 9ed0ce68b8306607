"""Hostile clients end no process, cost no lease, make no memory grow, and starve no other client.

The short form of ``python -m benchmarks.abuse``: attacks of a second each, in turns.
"""

from pathlib import Path

import pytest

from benchmarks.abuse import RSS_GROWTH_BYTES_MAX, Finding, open_stage
from icecore.dev import LocalCluster
from tests.support import rotation

ATTACKS = (
    *("rapid-reset", "unfinished", "oversized", "slow-headers", "pings"),
    *("rapid-reset-coordinator", "native-calls", "native-bodies"),
    *("produce-entries", "produce-bombs", "records-empty", "views"),
    *("fetch-entries", "list-offsets", "as-records", "polls", "deadlines"),
    *("metadata-names", "describe-flood"),
)
ATTACKS_PER_RUN = 6
TAKEN = rotation.take("attacks of strangers", ATTACKS, ATTACKS_PER_RUN)
SECONDS = 1.0
OUTAGE_S_MAX = 5.0
"""The machine that runs tests does other things, too; the benchmark wants one second."""


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_a_neighbour_is_served_whatever_strangers_send(tmp_path: Path) -> None:
    bad: list[Finding] = []
    with LocalCluster(tmp_path / "cluster", 3) as cluster:
        async with open_stage(cluster) as stage:
            for name in TAKEN:
                found = await stage.run(name, SECONDS)
                before, _, after = found.rss_mib
                is_bad = found.died or found.nodes_down or found.errors
                is_large = (after - before) << 20 > RSS_GROWTH_BYTES_MAX
                if is_bad or is_large or max(found.outage_s.values()) > OUTAGE_S_MAX:
                    bad.append(found)
    assert not bad, "\n".join(map(str, bad))
