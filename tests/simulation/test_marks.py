"""Marks are seen where they should be, and watching changes nothing."""

import logging
from pkgutil import resolve_name

import pytest

from icecore.errors import NotLeaderError
from icecore_node.context import Peers
from icecore_node.identity.readers import Readers
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import PartitionReplicas, ReplicaTable
from icecore_replication.recovery import FenceReply
from tests.simulation import marks
from tests.simulation.scenarios import run_seed
from tests.support.replication_setup import segment


def test_each_mark_stands_once_in_the_table_and_its_function_exists() -> None:
    assert len(set(marks.ALL)) == len(marks.ALL)
    for call in marks.CALLS:
        assert callable(resolve_name(call.function)), call


def test_a_call_is_seen_by_what_it_answers() -> None:
    record = segment()
    reply = FenceReply(intact=True)
    with marks.watch() as hit:
        may_decide = resolve_name("icecore_coordinator.work.recovery.recovery_case:may_decide")
        may_decide({}, record)
        assert not hit
        may_decide(dict.fromkeys(record.replicas, reply), record)
    assert hit == {"decided_by_s3"}


def test_a_call_is_seen_by_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = PartitionReplicas(b"", 0)
    monkeypatch.setattr(ReplicaTable, "partition", lambda *_: empty)
    leaders = Leaders(ReplicaTable(Readers()), 1, Peers())
    with marks.watch() as hit, pytest.raises(NotLeaderError):
        leaders.leader(b"", "events", 0, 0)
    assert hit == {"redirected"}


def test_a_message_is_seen_once_the_watch_is_open_and_not_after_it() -> None:
    log = logging.getLogger("icecore_node.storage.replica_store")
    log.warning('event=quarantined segment_id=7 why="too early"')
    with marks.watch() as hit:
        log.info("event=handed_over leads=0 took_ms=%d", 3)
    log.warning('event=quarantined segment_id=7 why="too late"')
    assert hit == {"left_cleanly"}
    assert logging.getLogger("icecore_node").level == logging.NOTSET


def test_a_watched_run_is_the_same_run() -> None:
    alone = run_seed("smoke", 2)
    with marks.watch() as hit:
        watched = run_seed("smoke", 2)
    assert watched.trace_hash == alone.trace_hash
    assert {"live_seal", "repaired"} <= hit <= set(marks.ALL)
