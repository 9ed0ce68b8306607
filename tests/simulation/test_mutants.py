"""The simulator must notice known mistakes, else it is not testing anything.

The rotation chooses three of them (``turns.py``); ``make sim-mutants`` takes all, and looks longer
for rare ones.
"""

from collections.abc import Callable

import pytest

from tests.simulation import mutants, turns
from tests.simulation.mistakes import patch
from tests.simulation.mutants import MUTANTS, Mutant, hunt
from tests.simulation.scenarios import run_seed

SEEDS_MAX = 12


@pytest.mark.parametrize("mutant", turns.HUNTED, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_noticed(mutant: Mutant) -> None:
    outcome = hunt(mutant, SEEDS_MAX)
    assert outcome.killed_by, str(outcome)
    assert "pytest-timeout" not in outcome.problem, "the clock ended the world, not the mistake"


@pytest.mark.parametrize(("scenario", "seed"), turns.CLEAN)
def test_its_world_is_clean_without_it(scenario: str, seed: int) -> None:
    report = run_seed(scenario, seed)
    assert not report.problems


def test_each_mutant_names_its_rule() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in MUTANTS:
        rule = (mutant.mistake.__doc__ or "").partition(":")[0]
        assert rule.startswith(("R", "I", "Principle")), mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_the_code_of_today(mutant: Mutant) -> None:
    with mutant.mistake():
        pass


def test_a_mistake_that_can_not_be_called_is_refused() -> None:
    """Its world would fail for that, and the rule could be gone unnoticed."""
    for wrong in (lambda: None, lambda _, more: None):
        with pytest.raises(TypeError), patch(turns, "_named", wrong):
            pass
    with patch(turns, "_named", lambda _: ""):
        assert not turns._named(("smoke", 1))


def test_the_last_line_and_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Here:
        """A pool of this process."""

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def imap_unordered(
            self,
            function: Callable[[tuple[str, int]], mutants.Outcome],
            jobs: list[tuple[str, int]],
        ) -> list[mutants.Outcome]:
            return [mutants.Outcome(name, 1, 1.0, self.found(name)) for name, _ in jobs]

        def found(self, name: str) -> tuple[str, int] | None:
            return None if name == "quorum_of_one" else ("smoke", 1)

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(mutants, "make_pool", lambda jobs: Here())
    assert mutants.main(["no_folder_sync"]) == 0
    assert capsys.readouterr().out.endswith("sim-mutants: mutants=1 killed=1 survivors=0\n")
    assert mutants.main(["no_folder_sync", "quorum_of_one"]) == 1
    assert "SURVIVED quorum_of_one" in capsys.readouterr().out
