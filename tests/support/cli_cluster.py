"""A cluster that is not one, on a loop of its own, and commands that are run against it."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from icecore import Producer
from icecore.cli.app import main
from tests.support.fake_cluster import FakeCluster

LONG_S = 20.0


@contextmanager
def serving(
    topic: str, partitions: int, rows: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[FakeCluster]:
    """A topic with these records, each with the number of its partition."""
    started, stop = threading.Event(), threading.Event()
    found: list[FakeCluster] = []

    async def serve() -> None:
        async with FakeCluster(nodes=2) as fake:
            fake.add_topic(topic, partitions)
            async with Producer(fake.bootstrap, net=fake.net) as producer:
                for number, row in rows:
                    await producer.send_and_wait(topic, partition=number, **row)
            found.append(fake)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(LONG_S)
        yield found[0]
    finally:
        stop.set()
        thread.join()


class Cli:
    """Runs commands and keeps what they print."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._bootstrap, self._capsys = bootstrap, capsys
        self.err = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["-b", self._bootstrap, *arguments])
        printed = self._capsys.readouterr()
        self.err = printed.err
        assert ended.value.code == status, printed.err
        assert "Traceback" not in printed.err
        return printed.out

    def values(self, *arguments: str, status: int = 0) -> list[str]:
        lines = self(*arguments, status=status).splitlines()
        return [json.loads(line)["value"] for line in lines]
