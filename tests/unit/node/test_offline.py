"""What a person may see and lower of a stopped node's promises."""

import json
from pathlib import Path

import pytest

from icecore_node import offline
from icecore_node.storage.data_folder import DataFolder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = DataFolder.open(tmp_path / "data", 3)
    folder.control.promises.persist([(7, 1 << 40)], (1 << 63) - 1)
    folder.close()
    return tmp_path / "data"


def promised(data: Path) -> tuple[int, int]:
    """Token, and promise of segment 7, as a node finds them."""
    folder = DataFolder.open(data, 3)
    try:
        return folder.control.promises.max_token, folder.control.promises.epoch_of(7)
    finally:
        folder.close()


def test_inspect_shows_whose_it_is(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline.main(["inspect", str(data)])
    found = json.loads(capsys.readouterr().out)
    assert (found["node_id"], found["max_token"]) == (3, (1 << 63) - 1)


def test_nothing_changes_without_yes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline.main(["reset-token", str(data), "--token", "4"])
    assert "becomes 4" in (said := capsys.readouterr().out) and "--yes" in said
    assert promised(data) == ((1 << 63) - 1, 1 << 40)


def test_numbers_are_lowered(data: Path) -> None:
    offline.main(["reset-token", str(data), "--token", "4", "--yes"])
    assert promised(data) == (4, 1 << 40)
    offline.main(["reset-promise", str(data), "--segment", "7", "--epoch", "2", "--yes"])
    assert promised(data) == (4, 2)


def test_a_running_node_is_left_alone(data: Path) -> None:
    folder = DataFolder.open(data, 3)
    try:
        with pytest.raises(SystemExit, match="already in use by pid"):
            offline.main(["inspect", str(data)])
    finally:
        folder.close()


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a node's data folder"):
        offline.main(["inspect", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        offline.main(["reset-token", str(tmp_path), "--token", "-1"])
