"""Nodes' reports of damaged copies: damage that is told again outlives a late answer."""

import pytest

from icecore.model import NodeId, SegmentId
from icecore_coordinator.nodes import copy_reports
from icecore_coordinator.nodes.copy_reports import CopyReports

NODE = NodeId(2)
ONE, OTHER = SegmentId(1), SegmentId(9)


def test_an_answer_takes_back_only_what_was_said_before_its_question() -> None:
    copies = CopyReports()
    copies.note_unknown(NODE, [ONE, OTHER])
    asked = copies.count
    copies.note_unknown(NODE, [ONE])
    for each in (ONE, OTHER):
        copies.copied(NODE, each, asked)
    assert list(copies.unknown()) == [(NODE, ONE)]
    copies.copied(NODE, ONE)
    assert not list(copies.unknown())


def test_what_is_told_again_needs_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_reports, "UNKNOWN_KEPT_MAX", 1)
    copies = CopyReports()
    copies.note_unknown(NODE, [ONE])
    asked = copies.count
    copies.note_unknown(NODE, [OTHER, ONE])
    copies.copied(NODE, ONE, asked)
    assert list(copies.unknown()) == [(NODE, ONE)]
