"""Let leaders recognise a task that is run again.

Its producer id follows from the write and the number of the task, and its rows are the same.

Tasks of one write have neighbouring ids, so that a leader can be asked for all of them at once.
"""

import hashlib
from typing import Final

from icecore.errors import ConfigurationError, IcecoreError

TASK_BITS: Final = 17
"""More tasks than there are producers that a leader remembers."""
EPOCHS: Final = 1_000
"""Micro-batches under one producer id: leaders refuse an epoch that is more than 1,024 beyond the
last one, and a partition may get nothing for long."""


class SparkTaskChangedError(IcecoreError):
    """A write that is run again has other rows than the first time, or has divided them
    otherwise."""

    reason = "SPARK_TASK_CHANGED"


def identity(name: str, task: int, batch_id: int) -> tuple[int, int]:
    """Return the producer id and the epoch of a task.

    The highest bit tells these ids from those that a coordinator counts out.

    Raises:
        ConfigurationError: There are too many tasks.
    """
    if task >> TASK_BITS:
        raise ConfigurationError(
            f"a write has at most {1 << TASK_BITS} tasks, and this one has the number {task}: put "
            "coalesce before it"
        )
    text = f"{name}/{batch_id // EPOCHS}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    family = (number | 1 << 63) >> TASK_BITS
    return family << TASK_BITS | task, batch_id % EPOCHS + 1


def family_of(producer_id: int) -> tuple[int, int]:
    """Return the first and the last id that tasks of the same write have."""
    first = producer_id >> TASK_BITS << TASK_BITS
    return first, first + (1 << TASK_BITS) - 1


def task_of(producer_id: int) -> int:
    """Return the number of the task that has this id."""
    return producer_id & (1 << TASK_BITS) - 1
