"""A cluster of ours to measure, and what every measured system offers to the runner.

A system starts and stops, makes and deletes topics, and names its processes; producing and
fetching is done by client processes (``benchmarks/client.py``), which are told its address.
"""

from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks.harness.cases import (
    IN_MEMORY,
    IN_ROCKSDB,
    OVER_GRPC,
    SHARED_FILES,
    WITH_SYNCFS,
    Case,
)
from icecore.blocking import Admin
from icecore.dev import LocalCluster
from icecore.topic_settings import (
    MEMORY_ENGINE,
    OWN_FILE,
    ROCKSDB_ENGINE,
    SEGMENT_ENGINE,
    SHARED_FILE,
    FlushMode,
)


class Missing(Exception):
    """A system can't run here, or lacks what a case needs; the text says what is missing."""


class NotStarted(Exception):
    """A system is here and did not come up; the text says what it said."""


class PeerFailed(RuntimeError):
    """A system that ours are compared with failed in the middle of a measurement."""


class System(Protocol):
    """A system that is measured."""

    name: str
    warm_s: float
    """How long it must have worked before it is as fast as it gets."""

    @property
    def bootstrap(self) -> str:
        """The addresses that clients connect to."""

    @property
    def nodes(self) -> int:
        """Return how many processes hold data."""

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by name."""

    def lacks(self, case: Case) -> str:
        """Return the feature that a case needs and the system lacks; empty when there is none."""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """Make a topic that can be written at once; ``flush`` is ``sync`` or ``async``."""

    def delete_topic(self, topic: str) -> None:
        """Delete it and give its disk space back."""

    def hold(self) -> bool:
        """Stand still while another system is measured; False when it is to be stopped instead."""

    def go_on(self) -> None:
        """Serve again after that; returns when it does."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


_FRESH = {"recycle_bytes_max": 0}
"""New files for each topic, as the limit and the peers have them: a run is like the one before."""
_SETTINGS: dict[str, dict[str, Any]] = {
    WITH_SYNCFS: {"syncfs": "always"},
    OVER_GRPC: {"transport": "grpc"},
    IN_MEMORY: {"memory_engine_bytes": 4 << 30},
}
"""Settings of nodes that differ from the defaults, by system."""
_ENGINES = {IN_MEMORY: MEMORY_ENGINE, IN_ROCKSDB: ROCKSDB_ENGINE}
"""Engines of topics that differ from the default, by system."""
_AS_LATE_AS_PEERS: dict[str, Any] = {"flush_interval_ms": 30_000, "flush_bytes": 1 << 30}
"""Settings of topics with ``async``. Peers leave writing to the kernel, which writes data that is
30 s old. With our defaults (1 s, 16 MiB) ours alone would wait for a disk that is slower than the
records."""


class Icecore:
    """A coordinator and nodes of ours. Use as a context manager.

    Args:
        name: Which of ours (``OURS``). ``syncfs=always`` makes each node wait for the writes of
            all, for they share a file system here; with a disk of its own each would do it unasked.
        folder: For data and logs; need not exist.
        nodes: As many as replicas are wanted.
    """

    warm_s = 1.0

    def __init__(self, name: str, folder: Path, nodes: int) -> None:
        self.name = name
        self.nodes = nodes
        settings = {**_FRESH, **_SETTINGS.get(name, {})}
        self._cluster = LocalCluster(folder, nodes, node_settings=settings)

    def __enter__(self) -> Self:
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    @property
    def bootstrap(self) -> str:
        """The coordinator's address."""
        return self._cluster.bootstrap

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the coordinator and the nodes, by name."""
        return self._cluster.pids

    def lacks(self, case: Case) -> str:
        """See ``System``: some engines know one way only to sync."""
        is_bound = self.name in (IN_MEMORY, IN_ROCKSDB, SHARED_FILES)
        return f"flush={case.flush}" if is_bound and case.flush == "async" else ""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """See ``System``."""
        with Admin(self.bootstrap) as admin:
            admin.create_topic(
                topic,
                partitions=partitions,
                replication_factor=rf,
                **(_AS_LATE_AS_PEERS if flush == "async" else {}),
                flush_mode=FlushMode[flush.upper()],
                engine=_ENGINES.get(self.name, SEGMENT_ENGINE),
                file_model=SHARED_FILE if self.name == SHARED_FILES else OWN_FILE,
            )

    def delete_topic(self, topic: str) -> None:
        """See ``System``."""
        with Admin(self.bootstrap) as admin:
            admin.delete_topic(topic, now=True)

    def hold(self) -> bool:
        """See ``System``: leases would end meanwhile, and a start takes seconds."""
        return False

    def go_on(self) -> None:
        """See ``System``."""
