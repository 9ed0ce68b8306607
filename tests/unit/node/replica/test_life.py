"""The life of a replica: every move is in the table, and nobody but the replica makes one."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from icecore_node.io.io_pool import LogIo
from icecore_node.replica import life as lives
from icecore_node.replica.life import MOVES, IllegalMove, Life
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL
from icecore_replication.producers import ProducerTable
from tests.conformance.log_builder import identity

PREPARED = identity(7)
EPOCH = PREPARED.epoch
BEGUN = replace(PREPARED, base_offset=100)
TAIL = replace(NO_TAIL, end_offset=100, digest=b"d", max_known_high_watermark=100)
NODE = Path(__file__).resolve().parents[4] / "node" / "icecore_node"


class Role:
    """Notes how it ended."""

    high_watermark = 100
    durable_end_offset = 100

    def __init__(self) -> None:
        self.ends: list[str] = []

    def stop(self, why: str) -> None:
        self.ends.append(f"stopped: {why}")

    def fence(self, epoch: int) -> None:
        self.ends.append(f"fenced {epoch}")

    def give_up(self, why: str) -> None:
        self.ends.append(f"gave up: {why}")


def io() -> LogIo:
    anything: Any = SimpleNamespace(worker_for=lambda *_: None)
    return LogIo(anything, anything, anything)


def replica_in(life: Life) -> Replica:
    """One of segment 7 that came to this life by legal moves, or began in it."""
    if life in (Life.PREPARED, Life.COPYING):
        replica = Replica(io(), PREPARED, NO_TAIL, None, life=Life.PREPARED)
        if life is Life.COPYING:
            replica.move(lives.CopyBegun())
            replica.move(lives.Begun(BEGUN, TAIL, ProducerTable()))
        return replica
    start = life if life in (Life.SALVAGED, Life.IDLE) else Life.IDLE
    replica = Replica(io(), BEGUN, TAIL, ProducerTable(), life=start)
    for event in ON_THE_WAY.get(life, ()):
        replica.move(event)
    return replica


ON_THE_WAY: dict[Life, tuple[lives.Event, ...]] = {
    Life.LED: (lives.Led(Role()),),
    Life.FOLLOWED: (lives.Followed(Role()),),
    Life.RESIGNED: (lives.Led(Role()), lives.RoleEnded("a test")),
    Life.FENCED: (lives.Promised(EPOCH + 1),),
    Life.SEALED: (lives.Sealed(TAIL),),
    Life.UNKNOWN: (lives.Condemned("in a test"),),
    Life.GONE: (lives.Removed("a test"),),
}


def event_of(kind: type) -> lives.Event:
    examples: dict[type, lives.Event] = {
        lives.Begun: lives.Begun(BEGUN, TAIL, ProducerTable()),
        lives.CopyBegun: lives.CopyBegun(),
        lives.CopyWhole: lives.CopyWhole(),
        lives.Led: lives.Led(Role()),
        lives.Followed: lives.Followed(Role()),
        lives.RoleEnded: lives.RoleEnded("a test"),
        lives.Promised: lives.Promised(EPOCH + 1),
        lives.Sealed: lives.Sealed(TAIL),
        lives.Condemned: lives.Condemned("in a test"),
        lives.Removed: lives.Removed("a test"),
    }
    return examples[kind]


def has_base(replica: Replica, event: lives.Event) -> bool:
    return isinstance(event, lives.Begun) and replica.base_offset >= 0


@pytest.mark.parametrize("life", Life, ids=lambda life: life.value)
@pytest.mark.parametrize("kind", get_args(lives.Event), ids=lambda kind: kind.__name__)
def test_each_life_takes_an_event_as_the_table_says_or_not_at_all(life: Life, kind: type) -> None:
    replica, event = replica_in(life), event_of(kind)
    assert replica.life is life
    after = MOVES.get((life, kind))
    if after is None:
        with pytest.raises(IllegalMove) as refused:
            replica.move(event)
        assert f"segment 7 is {life.name}: {kind.__name__}" in str(refused.value)
        assert replica.life is life
    elif has_base(replica, event):
        with pytest.raises(AssertionError):  # base and starting state are given once
            replica.move(event)
    else:
        replica.move(event)
        assert replica.life is after


def test_the_table_names_only_lives_and_events() -> None:
    assert {life for life, _ in MOVES} | set(MOVES.values()) <= set(Life)
    assert {kind for _, kind in MOVES} == set(get_args(lives.Event))


def test_only_one_that_is_idle_gets_a_role_and_leadership_is_never_resumed() -> None:
    for kind in (lives.Led, lives.Followed):
        assert [life for life in Life if (life, kind) in MOVES] == [Life.IDLE]
    back = {life for (life, _), after in MOVES.items() if after is Life.IDLE}
    assert back == {Life.PREPARED, Life.COPYING, Life.FOLLOWED}


def test_nothing_that_is_lost_comes_back() -> None:
    for (life, _), after in MOVES.items():
        if life is Life.GONE:
            assert after is Life.GONE
        if life is Life.UNKNOWN:
            assert after in (Life.UNKNOWN, Life.GONE)


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (lives.RoleEnded("a test"), "stopped: a test"),
        (lives.Promised(EPOCH + 2), f"fenced {EPOCH + 2}"),
        (lives.Condemned("rot"), "gave up: rot"),
        (lives.Removed("a test"), "stopped: a test"),
    ],
)
def test_a_role_ends_once_as_the_event_says_and_knows_it_is_over(
    event: lives.Event, end: str
) -> None:
    for begin in (lives.Led, lives.Followed):
        role, replica = Role(), replica_in(Life.IDLE)
        replica.move(begin(role))
        assert replica.role is role
        replica.move(event)
        assert replica.role is None and role.ends == [end]
        replica.end_role("once more")
        assert role.ends == [end]


def test_a_promise_that_was_given_early_holds_once_there_is_something_to_fence() -> None:
    replica = replica_in(Life.PREPARED)
    replica.move(lives.Promised(EPOCH + 3))
    assert replica.life is Life.PREPARED
    replica.move(lives.Begun(BEGUN, TAIL, ProducerTable()))
    assert (replica.life, replica.promised_epoch) == (Life.FENCED, EPOCH + 3)
    found = Replica(io(), BEGUN, TAIL, ProducerTable(), life=Life.IDLE, promised_epoch=EPOCH + 1)
    assert found.life is Life.FENCED


def test_a_promise_never_goes_back() -> None:
    replica = replica_in(Life.FENCED)
    replica.move(lives.Promised(EPOCH + 5))
    replica.move(lives.Promised(EPOCH + 2))
    assert replica.promised_epoch == EPOCH + 5


def test_the_durable_end_never_passes_the_end() -> None:
    log = replica_in(Life.IDLE).log
    with pytest.raises(AssertionError, match="durable to 101, the log ends at 100"):
        log.became_durable(replace(TAIL, end_offset=101))


def test_an_illegal_move_tells_the_moves_before() -> None:
    replica = replica_in(Life.RESIGNED)
    with pytest.raises(IllegalMove, match="IDLE-Led->LED LED-RoleEnded->RESIGNED"):
        replica.move(lives.Led(Role()))


# --- one writer -----------------------------------------------------------------------------------

FIELDS = frozenset({*vars(replica_in(Life.IDLE)), *vars(replica_in(Life.IDLE).log)})


def stores(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes of something else than ``self`` that are written."""
    for each in ast.walk(tree):
        is_written = isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load)
        if is_written and ast.unparse(each.value) != "self":
            yield each


def foreign(each: ast.Attribute) -> bool:
    """Return whether it is written on a replica or its log, by their usual names."""
    owner = each.value.attr if isinstance(each.value, ast.Attribute) else ""
    owner = each.value.id if isinstance(each.value, ast.Name) else owner
    return owner in ("replica", "log", "old", "mine", "held") and each.attr in FIELDS


def test_nobody_but_the_replica_writes_its_fields() -> None:
    found = [
        f"{path.name}:{each.lineno}: {ast.unparse(each)}"
        for path in sorted(NODE.rglob("*.py"))
        if "storage" not in path.parts  # its replicas are records of what was found
        for each in stores(ast.parse(path.read_text()))
        if foreign(each)
    ]
    assert not found, found


def test_such_a_writer_would_be_seen() -> None:
    text = "replica.life = 1\nself.replica.log.tail = 2\nself.life = 3\nanswer.intact = True"
    assert [ast.unparse(each) for each in stores(ast.parse(text)) if foreign(each)] == [
        "replica.life",
        "self.replica.log.tail",
    ]
