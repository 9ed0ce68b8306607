"""Every order in which two coordinators can meet at a shared store; and the mutants."""

from dataclasses import replace

import pytest

from icecore_coordinator.stores.etcd_layout import EtcdHead, TxnOutcome, outcome_of
from tests.model.tokens import WORLDS, Rules, State, explore


def is_first_try(
    head: EtcdHead, after: EtcdHead, found: EtcdHead | None, is_done: bool, _: bool
) -> TxnOutcome:
    """Whoever sent a call twice takes the last answer for the only one."""
    return outcome_of(head, after, found, is_done=is_done, is_repeated=False)


def answers_are_not_lost(
    head: EtcdHead, after: EtcdHead, found: EtcdHead | None, is_done: bool, _: bool
) -> TxnOutcome:
    """A head that is not ours any more is always another one's."""
    return TxnOutcome.DONE if is_done else TxnOutcome.SUPERSEDED


@pytest.mark.parametrize("name", WORLDS)
def test_production_is_right_in_all_of_them(name: str) -> None:
    states, wrong = explore(Rules(), WORLDS[name])
    assert not wrong
    assert states > 1_000


@pytest.mark.parametrize(
    ("name", "rules", "expected"),
    [
        ("repeats", Rules(may_write=lambda one, other: one.revision == other.revision), "I18"),
        (
            "goes back",
            Rules(
                may_write=lambda one, other: (
                    (one.epoch, one.revision) == (other.epoch, other.revision)
                )
            ),
            "I18",
        ),
        (
            "repeats",
            Rules(may_write=lambda stored, ours: stored.holder == ours.holder),
            "happens twice",
        ),
        ("repeats", Rules(judge=is_first_try), "called refused that has happened"),
        ("repeats", Rules(judge=answers_are_not_lost), "called refused that has happened"),
        ("watch", Rules(follows=lambda *_: True), "R122"),
        ("watch", Rules(is_proved=lambda _: True), "R122"),
    ],
)
def test_a_mistake_shows(name: str, rules: Rules, expected: str) -> None:
    assert expected in explore(rules, WORLDS[name])[1]


def test_it_begins_empty() -> None:
    assert State().changes == () and replace(State(), numbers=1) != State()
