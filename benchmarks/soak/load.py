"""Clients of a soak: at a steady rate they write, read the newest and the oldest, and look up.

Topic ``soaked`` is tiered: its segments leave the nodes soon after their seal, and expire somewhat
later. So most look-ups, and whoever reads from the beginning, need object storage. Topic ``held``
lies in memory alone.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.errors import IcecoreError

TOPIC, IN_MEMORY = "soaked", "held"
KEYS = 5_000
PARTITIONS = 4
KEEP_S_MAX = 120.0
"""Longest retention. A run of minutes has a shorter one, so that it comes to an end of it, too."""
_BYTES_PER_S = 17_000
"""Size of segments by the retention; with it each partition has some in object storage."""
_TURN_S = 0.2
_LOOK_PAUSE_S = 0.05
_OLDEST_EVERY_S = 20.0
ERRORS_KEPT = 5


def create_topics(bootstrap: str, keep_s: float) -> None:
    """Create both topics, whose records are kept for so long."""
    keep_ms = round(keep_s * 1000)
    with Admin(bootstrap) as admin:
        admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=3,
            tier="on",
            local_retention_ms=keep_ms // 6,
            retention_ms=keep_ms,
            segment_bytes=max(64 << 10, round(keep_s * _BYTES_PER_S)),
            indexed_headers=("h",),
        )
        admin.create_topic(
            IN_MEMORY,
            partitions=2,
            replication_factor=3,
            engine="memory",
            retention_ms=keep_ms,
            segment_bytes=1 << 20,
        )


@dataclass(slots=True)
class Counts:
    """Counts of what the clients have done so far."""

    sent: int = 0
    read: int = 0
    read_from_oldest: int = 0
    looks: int = 0
    incomplete_looks: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)


class Load:
    """Clients in threads of this process, from ``start`` to ``stop``.

    Args:
        bootstrap: Address of the cluster.
        records_per_s: Records of ``soaked`` each second; ``held`` gets a tenth of that.
    """

    def __init__(self, bootstrap: str, records_per_s: int) -> None:
        self._bootstrap, self._records_per_s = bootstrap, records_per_s
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.counts = Counts()

    def start(self) -> None:
        """Begin."""
        for act in (self._write, self._read, self._read_oldest, self._look_up):
            thread = threading.Thread(target=self._go_on, args=(act,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End, and wait for that."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)

    def _go_on(self, act: Callable[[], None]) -> None:
        """Begin again after an error, until the load is over."""
        while not self._is_over.is_set():
            try:
                act()
            except IcecoreError as error:
                self.counts.errors += 1
                if len(self.counts.first_errors) < ERRORS_KEPT:
                    self.counts.first_errors.append(f"{act.__name__}: {error!r}"[:300])
                self._is_over.wait(1)

    def _write(self) -> None:
        counts, each_turn = self.counts, max(1, round(self._records_per_s * _TURN_S))
        with Producer(self._bootstrap) as producer:
            while not self._is_over.is_set():
                began_s = time.monotonic()
                for _ in range(each_turn):
                    at = counts.sent
                    producer.send(
                        TOPIC,
                        b"v%d" % at + b"x" * 300,
                        key=b"k%d" % (at % KEYS),
                        tags=[f"t{at % 50}"],
                        headers={"h": b"%d" % (at % 100)},
                    )
                    counts.sent += 1
                    if at % 10 == 0:
                        producer.send(IN_MEMORY, b"m%d" % at, key=b"k")
                self._is_over.wait(max(0.0, began_s + _TURN_S - time.monotonic()))

    def _read(self) -> None:
        with Consumer(self._bootstrap, TOPIC, start="latest") as consumer:
            while not self._is_over.is_set():
                self.counts.read += len(consumer.poll(timeout_s=1.0))

    def _read_oldest(self) -> None:
        """Read all that there is; most of it is in object storage alone."""
        with Consumer(
            self._bootstrap, TOPIC, start="earliest", stop_at_end=True, on_out_of_range="earliest"
        ) as consumer:
            for _ in consumer:
                self.counts.read_from_oldest += 1
                if self._is_over.is_set():
                    return
        self._is_over.wait(_OLDEST_EVERY_S)

    def _look_up(self) -> None:
        with Lookup(self._bootstrap, TOPIC) as lookup:
            while not self._is_over.is_set():
                key = b"k%d" % random.randrange(KEYS)
                found = lookup.find(keys=[key], max_count=50)
                self.counts.looks += 1
                self.counts.incomplete_looks += not found.complete
                self._is_over.wait(_LOOK_PAUSE_S)
