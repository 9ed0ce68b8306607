"""A short form of ``make model``: small worlds in full, and a few mutants in turns."""

import pytest

from tests.model import run
from tests.model.checker import search
from tests.model.configs import Config
from tests.model.mutants import CALM, MUTANTS, SEAL, Mutant
from tests.model.rules import Rules
from tests.model.steps import Protocol
from tests.support import rotation

SMALLEST = Config("two replicas", nodes=2, replication_factor=2, crashes=1, live_seal=True)
CHOSEN = rotation.take("model: mutants", MUTANTS, 6, show=lambda mutant: mutant.name)


@pytest.mark.parametrize("config", [SMALLEST, CALM, SEAL], ids=lambda config: config.name)
def test_every_state_is_clean(config: Config) -> None:
    result = search(Protocol(config, Rules()))
    assert not result.violation, "\n".join([result.violation, *result.trace])
    assert result.states > 100


@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    result = search(Protocol(mutant.config, mutant.rules))
    assert result.violation, f"{mutant.name} survived {result.states} states"


@pytest.mark.parametrize("synced", [True, False])
def test_every_step_of_the_model_can_happen(synced: bool) -> None:
    """A step that is never taken would make the search look better than it is."""
    everything = Config(
        "all",
        nodes=2,
        crashes=1 if synced else 2,
        losses=1,
        min_insync_replicas=1,
        rebuild=True,
        synced=synced,
        restart_empty=not synced,
        live_seal=True,
        altered_to=2,
    )
    model = Protocol(everything, Rules())
    taken: set[str] = set()
    level, seen = [model.start()], {model.start()}
    while level:
        steps = [step for world in level for step in model.successors(world)]
        taken |= {name for name, _, _ in steps}
        level = list({world for _, _, world in steps} - seen)
        seen |= set(level)
    never = {action.__name__ for action in model.actions} - taken
    assert never == {"proposal_times_out"}  # by the rules a timeout changes nothing


def test_the_last_line_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["shortest_log_decides", "q_of_opened_replicas"]) == 0
    out = capsys.readouterr().out
    assert "seal_recovered(1)" in out
    last = out.splitlines()[-1]
    assert last.startswith("model: configs=0 states=")
    assert last.endswith(" violations=0 mutants=2 killed=2")


def test_a_survivor_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Mutant("harmless", "none", {}, CALM)
    monkeypatch.setattr(run, "MUTANTS", (harmless,))
    assert run.main(["harmless"]) == 1
