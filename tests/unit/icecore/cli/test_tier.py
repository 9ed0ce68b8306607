"""``icecore tier verify`` beside a cluster that publishes meanwhile; what a restore asks for."""

from collections.abc import Callable
from typing import Any

import pytest

from icecore.cli import tier
from icecore.cli.app import main
from icecore.errors import ConflictError, UnavailableError
from icecore.topic_settings import FlushMode, TopicSettings


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
        monkeypatch.setattr(tier, "run_on_bucket", look)
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


@pytest.fixture
def restore(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TopicSettings]:
    """The settings that a topic is restored with, of those in the bucket and arguments."""

    def run(stored: dict[str, Any] | None, *arguments: str) -> TopicSettings:
        plan = {
            "topic": "flights",
            "partitions": 2,
            "problems": [],
            "left_out": [],
            "segments": [],
            "settings": stored,
        }
        asked: list[TopicSettings] = []
        found = {"topics": [plan], "cluster_id": "", "left_out": []}
        monkeypatch.setattr(tier, "run_on_bucket", lambda *_: found)
        monkeypatch.setattr(tier, "_claim", lambda *_, **__: None)
        monkeypatch.setattr(tier, "_import", lambda _, __, settings: asked.append(settings))
        with pytest.raises(SystemExit) as ended:
            main(["--json", "tier", "restore", "file:///b", *arguments])
        assert ended.value.code == len(asked) - 1 or not asked
        return asked[0] if asked else TopicSettings()

    return run


def test_settings_come_back(
    restore: Callable[..., TopicSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = {
        "partitions": 6,
        "replication_factor": 3,
        "min_insync_replicas": 2,
        "flush_mode": "FLUSH_MODE_ASYNC",
        "segment_bytes": "1048576",
        "delete_grace_ms": "0",
        "retention_ms": "-1",
        "indexed_headers": ["tenant"],
        "tier": "off",
        "local_retention_bytes": "7",
    }
    found = restore(stored)
    assert (found.partitions, found.segment_bytes, found.flush_mode) == (
        6,
        1 << 20,
        FlushMode.ASYNC,
    )
    assert (found.delete_grace_ms, found.retention_ms, found.local_retention_bytes) == (0, -1, 7)
    assert (found.indexed_headers, found.tier) == (("tenant",), "off")
    assert (found.replication_factor, found.min_insync_replicas) == (3, 2)
    found = restore(stored, "--partitions", "9", "--replication-factor", "1")
    assert (found.partitions, found.replication_factor, found.min_insync_replicas) == (9, 1, 1)
    assert "has no settings" not in capsys.readouterr().err


def test_an_older_bucket_is_restored_and_says_so(
    restore: Callable[..., TopicSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert restore(None) == TopicSettings(partitions=2, tier="on")
    assert "the bucket has no settings of topic flights" in capsys.readouterr().err


WHY = "it is deleted; --with-deleted brings it back"
LEFT = {"topic": "old", "topic_id": "ab" * 16, "why": WHY}


@pytest.mark.parametrize("is_dry", [False, True])
def test_what_a_restore_leaves_out_is_said(
    is_dry: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = []
    plan = {"topic": "flights", "problems": [], "left_out": ["a hole"], "segments": []}
    found = {"url": "file:///b", "cluster_id": "", "topics": [plan], "left_out": [LEFT]}

    def run(_: object, asked: list[str]) -> dict[str, Any]:
        words[:] = asked
        return found

    monkeypatch.setattr(tier, "run_on_bucket", run)
    monkeypatch.setattr(tier, "_claim", lambda *_, **__: None)
    monkeypatch.setattr(tier, "_settings", lambda *_: TopicSettings())
    monkeypatch.setattr(tier, "_import", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["tier", "restore", "file:///b", "--with-deleted", *["--dry-run"] * is_dry])
    assert ended.value.code == 0 and "--with-deleted" in words
    told = capsys.readouterr().err
    assert f"topic old ({'ab' * 16}) is left out: it is deleted; --with-deleted brings" in told
    assert "a hole" in told


def test_a_restore_of_nothing_but_deleted_topics_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"url": "file:///b", "cluster_id": "", "topics": [], "left_out": [LEFT]}
    monkeypatch.setattr(tier, "run_on_bucket", lambda *_: found)
    with pytest.raises(SystemExit) as ended:
        main(["tier", "restore", "file:///b", "--topic", "old"])
    assert ended.value.code == 1
    assert "it is deleted; --with-deleted brings it back" in capsys.readouterr().err


def test_settings_of_a_later_version_are_refused(
    restore: Callable[..., TopicSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert restore({"partitions": 2, "colour": "blue"}) == TopicSettings(), "nothing was asked"
    told = capsys.readouterr().err
    assert "colour" in told and "a later one" in told


def _plan(name: str, *problems: str) -> dict[str, Any]:
    rest: dict[str, Any] = {"left_out": [], "segments": []}
    return {"topic": name, "topic_id": name, "problems": [*problems], **rest}


def test_one_damaged_topic_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = [_plan("a", "a hole"), _plan("taken"), _plan("c")]
    found = {"cluster_id": "", "topics": topics, "left_out": []}
    back: list[str] = []

    def bring(_: object, plan: dict[str, Any], __: object) -> None:
        if plan["topic"] == "taken":
            raise ConflictError("there is such a topic")
        back.append(plan["topic"])

    monkeypatch.setattr(tier, "run_on_bucket", lambda *_: found)
    monkeypatch.setattr(tier, "_claim", lambda *_, **__: None)
    monkeypatch.setattr(tier, "_settings", lambda *_: TopicSettings())
    monkeypatch.setattr(tier, "_import", bring)
    with pytest.raises(SystemExit) as ended:
        main(["tier", "restore", "file:///b"])
    told = capsys.readouterr().err
    assert (ended.value.code, back) == (1, ["c"])
    assert "not restored: a: a hole" in told
    assert "not restored: taken: there is such a topic" in told


def test_each_damaged_topic_is_named_where_none_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = [_plan(f"t{number}", "a hole") for number in range(7)]
    found = {"cluster_id": "", "topics": topics, "left_out": []}
    monkeypatch.setattr(tier, "run_on_bucket", lambda *_: found)
    with pytest.raises(SystemExit) as ended:
        main(["tier", "restore", "file:///b"])
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert all(f"not restored: t{number}: a hole" in told for number in range(7))


def test_a_coordinator_that_is_away_ends_a_restore(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"cluster_id": "", "topics": [_plan("a"), _plan("b")], "left_out": []}
    asked: list[str] = []

    def bring(_: object, plan: dict[str, Any], __: object) -> None:
        asked.append(plan["topic"])
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(tier, "run_on_bucket", lambda *_: found)
    monkeypatch.setattr(tier, "_claim", lambda *_, **__: None)
    monkeypatch.setattr(tier, "_settings", lambda *_: TopicSettings())
    monkeypatch.setattr(tier, "_import", bring)
    with pytest.raises(SystemExit) as ended:
        main(["tier", "restore", "file:///b"])
    assert ended.value.code != 0 and asked == ["a"]
    assert "nobody answers" in capsys.readouterr().err


@pytest.mark.parametrize("store_id", ["zz" * 16, "0", "0011", "00" * 17, "12 34 x", "00 " * 16])
def test_an_id_of_a_store_is_hexadecimal(store_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tier", "forget-store", store_id, "--yes"])
    assert ended.value.code == 2
    assert "32 hexadecimal digits" in capsys.readouterr().err
