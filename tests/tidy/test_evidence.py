"""Each message between servers, with every field, is in a row of docs/design/evidence.md, and each
row names what there is: rules, mutants, guards and tests."""

import ast
from functools import lru_cache

import pytest

from tests.simulation.mutants import MUTANTS
from tests.support import evidence_table
from tests.support.evidence_table import Guard
from tests.support.guards import find_function
from tests.tidy.names import rules
from tests.tidy.tree import ROOT

ROWS = evidence_table.rows()
HEAD = "| message | fields | compared with | when they differ | rules | broken by |\n"


@lru_cache(maxsize=1)
def _tests() -> frozenset[str]:
    """Return ``test_file::test_name`` of all tests."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(f"{path.stem}::{node.name}")
    return frozenset(found)


def problems(found: list[evidence_table.EvidenceRow]) -> list[str]:
    """List what a table lacks, and what it names although it does not exist."""
    mutants = {each.name for each in MUTANTS}
    wrong = [*evidence_table.missing(found), *evidence_table.strange(found)]
    for row in found:
        if row.is_compared and not (row.guards or row.mutants):
            wrong.append(f"{row.messages} {row.fields}: no mutant and no guard breaks this row")
        wrong += [f"there is no rule {each}" for each in row.rules if int(each[1:]) not in rules()]
        wrong += [f"there is no mutant {each}" for each in row.mutants if each not in mutants]
        tests = (*row.tests, *(each.test for each in row.guards))
        wrong += [f"there is no test {each}" for each in tests if each not in _tests()]
        wrong += [
            f"there is no function {each.function}"
            for each in row.guards
            if find_function(each.function) is None
        ]
    return sorted(set(wrong))


def test_each_field_has_its_row_and_each_row_names_what_there_is() -> None:
    assert ROWS
    found = problems(ROWS)
    assert not found, "\n".join(found)


def test_what_only_an_identity_could_contradict_is_listed() -> None:
    listed = evidence_table.without_identity()
    assert listed and all(harm for _, harm in listed)
    assert {each for names, _ in listed for each in names} <= evidence_table.messages().keys()


def test_guards_are_found_by_the_end_of_their_names() -> None:
    assert find_function("order_checks:check_promise") is not None
    assert find_function("identity:Identity.check_cluster") is not None
    for name in (
        "order_checks:check_nothing",
        "nowhere:check_promise",
        "identity:Identity.nothing",
    ):
        assert find_function(name) is None


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("`FenceRequest` | `nothing` | a | b | R30 | `missing_is_empty`", "no field nothing"),
        ("`Nonsense` | `epoch` | a | b | R30 | `missing_is_empty`", "no message Nonsense"),
        ("`FenceRequest` | `salvage` | a | b | R9999 | `missing_is_empty`", "no rule"),
        ("`FenceRequest` | `salvage` | a | b | R30 | `no_such_mutant`", "no mutant"),
        ("`FenceRequest` | `salvage` | a | b | R30 | `test_a::test_b`", "no test test_a"),
        ("`FenceRequest` | `salvage` | a | b | R30 | –", "no mutant and no guard"),
        ("`FenceRequest` | `salvage` | a | b | R46 | `test_a::test_b`", "no mutant and no guard"),
        ("`FenceRequest` | `salvage` | nothing: | b | R46 | –", "no mutant and no guard"),
        ("`FenceRequest` | `salvage` | a | b | R30 | `a:b` by `test_a::test_b`", "no function a:b"),
        ("`FenceRequest` | `salvage` | a | b | R30 | `missing_is_empty`", "FenceRequest.segments"),
    ],
)
def test_rule_bites(cells: str, problem: str) -> None:
    found = problems(evidence_table.rows(f"{HEAD}| {cells} |\n"))
    assert any(problem in each for each in found), found


def test_a_guard_is_read_with_its_test() -> None:
    text = (
        f"{HEAD}| … | `epoch` | a | b | R30 | `a:b` by `test_a::test_b`, `c`, `test_d::test_e` |\n"
    )
    [row] = evidence_table.rows(text)
    assert "FenceRequest" in row.messages and len(row.messages) == 10
    assert row.guards == (Guard("a:b", "test_a::test_b"),)
    assert (row.mutants, row.tests) == (("c",), ("test_d::test_e",))
