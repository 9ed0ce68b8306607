"""``icecore tier verify`` beside a cluster that publishes meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest

from icecore.cli import tier
from icecore.cli.app import main


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], list[int]], tuple[int, int]]:
    """Exit status and number of looks, of what metadata and the looks say one after the other."""

    def run(metadata: list[str], damaged: list[int]) -> tuple[int, int]:
        known, looks = iter(metadata), iter(damaged)
        asked: list[Any] = []

        def look(session: Any, words: list[str], published: str | None = None) -> dict[str, Any]:
            asked.append((words, published))
            return {"damaged": next(looks), "strange": [], "topics": []}

        monkeypatch.setattr(tier, "_metadata", lambda session, topics: next(known))
        monkeypatch.setattr(tier, "_run", look)
        offline = [] if metadata else ["--offline"]
        with pytest.raises(SystemExit) as ended:
            main(["--json", "tier", "verify", "file:///b", *offline])
        assert all(("--published" in words) == bool(metadata) for words, _ in asked)
        assert isinstance(ended.value.code, int)
        return ended.value.code, len(asked)

    return run


@pytest.mark.parametrize(
    ("metadata", "damaged", "expected"),
    [
        (["1", "1"], [0], (0, 1)),
        (["1", "1"], [2], (1, 1)),  # nothing has changed: it is damage
        (["1", "2", "2"], [1, 0], (0, 2)),  # a commit was under way
        (["1", "2", "2"], [1, 1], (1, 2)),
        (["1", "2"], [0], (0, 1)),
        ([str(n) for n in range(9)], [1] * 9, (1, 5)),  # it never stands still
        ([], [3], (1, 1)),
    ],
)
def test_a_difference_counts_if_metadata_stand_still(
    verify: Callable[[list[str], list[int]], tuple[int, int]],
    metadata: list[str],
    damaged: list[int],
    expected: tuple[int, int],
) -> None:
    assert verify(metadata, damaged) == expected
