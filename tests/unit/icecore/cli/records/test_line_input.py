"""Lines of an input: bounded, in one pass, and less what is no part of any."""

import asyncio
import codecs
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.cli.records import line_input
from icecore.cli.records.line_input import UnreadableInputError, check_sources, read_lines
from tests.support import rotation


def lines_of(path: Path, line_bytes_max: int = 1 << 20, **options: object) -> list[bytes]:
    async def run() -> list[bytes]:
        found = read_lines(path, line_bytes_max, **options)  # type: ignore[arg-type]
        return [line async for lines in found for line in lines]

    return asyncio.run(run())


@settings(max_examples=rotation.examples(100), deadline=None)
@given(
    data=st.lists(st.binary(max_size=9), max_size=6).map(b"\n".join),
    chunk=st.integers(1, 7),
    mark=st.sampled_from([b"", codecs.BOM_UTF8]),
)
def test_lines_are_the_same_however_they_come(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, chunk: int, mark: bytes
) -> None:
    data = data.lstrip(b"\xef\xbb\xbf\xff\xfe\0")
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(mark + data)
    expected = data.split(b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_input, "_CHUNK_BYTES", chunk)
        assert lines_of(path) == (expected if expected[-1] else expected[:-1])


@pytest.mark.parametrize("parts", [[b"\xef", b"\xbb\xbf", b"a\nb"], [b"\xef\xbb\xbf"], [b"a"]])
def test_a_mark_that_comes_in_pieces(tmp_path: Path, parts: Sequence[bytes]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    async def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for part in parts:
                pipe.write(part)
                await asyncio.sleep(0.02)

    async def run() -> list[bytes]:
        writing = asyncio.create_task(asyncio.to_thread(asyncio.run, write()))
        await asyncio.sleep(0)
        found = [line async for lines in read_lines(path, 100) for line in lines]
        await writing
        return found

    joined = b"".join(parts).removeprefix(codecs.BOM_UTF8)
    assert asyncio.run(run()) == (joined.split(b"\n") if joined else [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("is_json", [False, True])
def test_other_encodings_are_refused_before_the_first_line(
    tmp_path: Path, encoding: str, is_json: bool
) -> None:
    has_mark = encoding in ("utf-16", "utf-32")
    path = tmp_path / "in"
    path.write_bytes('{"a": 1}\n'.encode(encoding))
    if is_json or has_mark:
        with pytest.raises(UnreadableInputError, match="must be UTF-8"):
            lines_of(path, is_json=is_json)
    else:
        assert lines_of(path)  # a line is any bytes


def test_a_line_without_an_end_is_refused_in_bounded_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInputError, match=r"/dev/zero, line 1: it has no end within"):
            lines_of(Path("/dev/zero"), 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_what_is_passed_over_may_be_longer(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\n" + bytes(3 << 20) + b"\nlast")
    with pytest.raises(UnreadableInputError, match="line 2: it has no end within 1000 bytes"):
        lines_of(path, 1_000)
    *before, last = lines_of(path, 1_000, first_line=3)
    assert (len(before), before[0], last) == (2, b"a", b"last")


def test_sources_are_looked_at_before_any_is_used(tmp_path: Path) -> None:
    good, pipe = tmp_path / "good", tmp_path / "pipe"
    good.touch()
    os.mkfifo(pipe)
    check_sources([good, pipe, Path("-"), Path("/dev/null")])
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, why in (("", "directory"), ("absent", "No such"), ("dangling", "No such")):
        with pytest.raises(UnreadableInputError, match=why):
            check_sources([good, tmp_path / name, good])


def test_a_named_pipe_without_a_writer_holds_nothing_up(tmp_path: Path) -> None:
    """No signal reaches a process that waits for it in ``open``."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    async def run() -> list[bytes]:
        async def first() -> list[bytes]:
            return [line async for lines in read_lines(path, 100) for line in lines]

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first(), 0.05)
        reading = asyncio.ensure_future(first())
        await asyncio.sleep(0.05)
        with path.open("wb") as pipe:
            pipe.write(b"a\nb")
        return await reading

    assert asyncio.run(asyncio.wait_for(run(), 20)) == [b"a", b"b"]


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_pipe_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, is_ended: bool) -> None:
    """A shell and what it runs next have the same one."""
    ours, theirs = os.pipe()
    kept = os.dup(ours)
    os.write(theirs, b"a\n")
    if is_ended:
        os.close(theirs)
    monkeypatch.setattr("sys.stdin", os.fdopen(ours))

    async def run() -> None:
        async for _ in read_lines(Path("-"), 100):
            if not is_ended:
                break

    asyncio.run(run())
    assert os.get_blocking(kept)
    os.close(kept)
    if not is_ended:
        os.close(theirs)
