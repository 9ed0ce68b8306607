"""The rows of a simulated query's micro-batches, and how attempts divide them into tasks.

A source that can be replayed gives the same rows each time. How they are divided follows from the
cluster, and now and then a run again has more tasks or fewer, gives tasks each other's rows, or
brings rows in another order; or the source is none that can be replayed, and has fewer rows, more,
or other ones.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

ROWS_MAX = 60
TASKS_MAX = 6


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One row; no two of a query have the same value."""

    value: bytes
    key: bytes | None = None


Division = tuple[tuple[SinkRow, ...], ...]
"""The rows of each task, in their order."""


def draw_rows(rng: random.Random, batch: int) -> tuple[SinkRow, ...]:
    """The rows of a micro-batch: often all of one size, so that batches of other rows end at the
    same ones."""
    count = rng.choice([5, 30, 45, ROWS_MAX])
    size_of = rng.choice([lambda: 30, lambda: 30, lambda: rng.randrange(16, 90)])
    keyed = rng.choice([0.0, 0.5, 1.0])
    rows: list[SinkRow] = []
    for number in range(count):
        key = b"k%d" % rng.randrange(12) if rng.random() < keyed else None
        rows.append(SinkRow(b"%d %03d " % (batch, number) + b"x" * size_of(), key))
    return tuple(rows)


def divide(rows: tuple[SinkRow, ...], tasks: int, *, deals_out: bool) -> Division:
    """Give each task rows that follow each other, or every so-manieth one."""
    if deals_out:
        return tuple(rows[task::tasks] for task in range(tasks))
    size = -(-len(rows) // tasks)
    return tuple(rows[task * size : (task + 1) * size] for task in range(tasks))


# --- run again otherwise --------------------------------------------------------------------------


def other_number(rng: random.Random, division: Division) -> Division:
    """The rows go to more tasks or fewer."""
    rows = tuple(sorted((row for task in division for row in task), key=lambda row: row.value))
    counts = [count for count in range(1, TASKS_MAX + 1) if count != len(division)]
    return divide(rows, rng.choice(counts), deals_out=rng.random() < 0.5)


def _exchanged(rng: random.Random, division: Division) -> Division:
    """Tasks have each other's rows."""
    return (*division[1:], division[0])


def _moved(rng: random.Random, division: Division) -> Division:
    """One task has some of its last rows no more; another one has them."""
    if len(division) < 2:
        return _reordered(rng, division)
    source, target = rng.sample(range(len(division)), 2)
    left = rng.randrange(len(division[source]) + 1)
    tasks = list(division)
    tasks[source], moved = division[source][:left], division[source][left:]
    tasks[target] = division[target] + moved
    return tuple(tasks)


def _reordered(rng: random.Random, division: Division) -> Division:
    """Each task has its rows, from somewhere on in another order."""
    tasks: list[tuple[SinkRow, ...]] = []
    for rows in division:
        kept = rng.randrange(len(rows) + 1)
        tasks.append((*rows[:kept], *reversed(rows[kept:])))
    return tuple(tasks)


def _fewer(rng: random.Random, division: Division) -> Division:
    """Some task has not all of its rows."""
    chosen = rng.randrange(len(division))
    tasks = list(division)
    tasks[chosen] = division[chosen][: rng.randrange(len(division[chosen]) + 1)]
    return tuple(tasks)


def _more(rng: random.Random, division: Division) -> Division:
    """Some task has rows behind those that it had."""
    chosen = rng.randrange(len(division))
    tasks = list(division)
    first = division[chosen][0].value if division[chosen] else b"%d" % chosen
    more = (SinkRow(b"%s more %d" % (first, number)) for number in range(8))
    tasks[chosen] = (*division[chosen], *more)
    return tuple(tasks)


def _other(rng: random.Random, division: Division) -> Division:
    """Some task has other rows of the same sizes, from somewhere on."""
    chosen = rng.randrange(len(division))
    rows = division[chosen]
    kept = rng.randrange(len(rows) + 1)
    others = (SinkRow(row.value.replace(b"x", b"y"), row.key) for row in rows[kept:])
    tasks = list(division)
    tasks[chosen] = (*rows[:kept], *others)
    return tuple(tasks)


OTHERWISE: tuple[Callable[[random.Random, Division], Division], ...] = (
    other_number,
    other_number,
    other_number,
    other_number,
    _exchanged,
    _moved,
    _reordered,
    _fewer,
    _more,
    _other,
)


def divided_otherwise(rng: random.Random, division: Division) -> Division:
    """Another division of a micro-batch, drawn."""
    return rng.choice(OTHERWISE)(rng, division)


def frames(rng: random.Random, rows: tuple[SinkRow, ...]) -> list[pa.RecordBatch]:
    """The rows as Spark brings them: in batches of any size."""
    found: list[pa.RecordBatch] = []
    at = 0
    while at < len(rows):
        size = rng.randint(1, 25)
        piece = rows[at : at + size]
        columns = {
            "value": pa.array([row.value for row in piece], pa.binary()),
            "key": pa.array([row.key for row in piece], pa.binary()),
        }
        found.append(pa.RecordBatch.from_pydict(columns))
        at += size
    return found
