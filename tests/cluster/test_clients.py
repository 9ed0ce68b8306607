"""Clients of real processes: wrong arguments, a fork, a topic made again, folders of namesakes."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from icecore import Consumer, Producer, blocking
from icecore.cli.app import main
from icecore.dev import LocalCluster
from icecore.errors import (
    ForkedError,
    IcecoreError,
    InvalidRequestError,
    TopicRecreatedError,
    UnavailableError,
)

LONG_S = 60
NAMESAKES = (
    *("node.py", "icecore_node.py", "icecore_coordinator.py", "icecore_replication.py"),
    *("icecore/__init__.py", "asyncio.py"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Begun where modules named like ours lie about, in the working directory and in PYTHONPATH."""
    folder = tmp_path_factory.mktemp("namesakes")
    for name in NAMESAKES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit('code of the user ran')\n")
    (folder / "own").mkdir()
    for name in NAMESAKES[:-1]:  # in PYTHONPATH those of the standard library go first, as ever
        (folder / "own" / name).parent.mkdir(exist_ok=True)
        (folder / "own" / name).write_text("raise SystemExit('code of the user ran')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", f"own{os.pathsep}{folder / 'own'}")
        with LocalCluster(folder / "cluster", nodes=1) as running:
            with pytest.raises(SystemExit) as ended:
                main(["config", "show", "node"])
            assert not ended.value.code
            yield running


def test_wrong_arguments_hurt_nobody_else(cluster: LocalCluster) -> None:
    with blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("wrong", partitions=1)
        for name in (None, 5, "", "a/b"):
            with pytest.raises((TypeError, IcecoreError)):
                admin.create_topic(name)
    with blocking.Producer(cluster.bootstrap, linger_ms=200) as producer:
        good = [producer.send("wrong", b"0")]
        for wrong in (
            {"timestamp_ms": 1.5},
            {"timestamp_ms": 1 << 63},
            {"headers": [("a",)]},
            {"headers": [("a", "text")]},
            {"tags": "abc"},
            {"partition": "0"},
        ):
            with pytest.raises((TypeError, InvalidRequestError)):
                producer.send("wrong", b"bad", **wrong)  # type: ignore[arg-type]
            good.append(producer.send("wrong", b"good", headers={"name": b"x"}))
        late = producer.send("wrong", b"bad", partition=7)
        with pytest.raises(InvalidRequestError):
            late.result(LONG_S)
        assert [handle.result(LONG_S).offset for handle in good] == list(range(7))
        producer.flush()
    with pytest.raises(UnavailableError):
        producer.send("wrong", b"after")
    producer.close()


def test_a_fork_is_told_so_and_the_parent_goes_on(cluster: LocalCluster) -> None:
    with blocking.Admin(cluster.bootstrap) as admin:
        admin.create_topic("forked", partitions=1)
    with blocking.Producer(cluster.bootstrap) as producer:
        assert producer.send("forked", b"0").result(LONG_S).offset == 0
        pid = os.fork()
        if pid == 0:
            os._exit(_in_fork(producer, cluster.bootstrap))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert producer.send("forked", b"1").result(LONG_S).offset == 1


def _in_fork(producer: blocking.Producer, bootstrap: str) -> int:
    """Return how many calls did not do as they should; a signal kills one that hangs."""
    signal.alarm(LONG_S)
    wrong = 0
    for call in (
        lambda: producer.send("forked", b"x"),
        producer.flush,
        lambda: producer.send_batch("forked", [b"x"]),
        lambda: blocking.Producer(bootstrap),
        lambda: blocking.Consumer(bootstrap, "forked"),
        lambda: blocking.Admin(bootstrap),
        lambda: asyncio.run(_start(Producer(bootstrap, producer_name="n"))),
        lambda: asyncio.run(_start(Consumer(bootstrap, "forked"))),
    ):
        try:
            call()
        except ForkedError:
            continue
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr)
        wrong += 1
    producer.close()
    return wrong


async def _start(client: Producer | Consumer) -> None:
    async with client:
        pass


async def test_a_topic_made_again_is_another_one(cluster: LocalCluster) -> None:
    from icecore import Admin

    async with (
        asyncio.timeout(LONG_S),
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, linger_ms=0) as producer,
    ):
        await admin.create_topic("again", partitions=4)
        for n in range(10):
            await producer.send_and_wait("again", b"old %d" % n, partition=3)
        async with (
            Consumer(cluster.bootstrap, "again") as strict,
            Consumer(cluster.bootstrap, "again", on_recreated="restart") as following,
        ):
            assert [(await anext(strict)).offset for _ in range(10)] == list(range(10))
            await anext(following)
            await admin.delete_topic("again")
            await admin.create_topic("again", partitions=2)
            found = await send_until_taken(producer, 25)
            assert found == list(range(25))
            with pytest.raises(TopicRecreatedError) as caught:
                await anext(strict)
            assert caught.value.metadata["topic_id"] in caught.value.message
            records = [await anext(following) for _ in range(9 + 25)]
            assert [r.value for r in records] == [
                *(b"old %d" % n for n in range(1, 10)),
                *(b"new %d" % n for n in range(25)),
            ]
            assert following.position() == {0: 0, 1: 25}


async def send_until_taken(producer: Producer, count: int) -> list[int]:
    """Records that were meant for the old topic fail; their offsets in the new one."""
    offsets: list[int] = []
    while len(offsets) < count:
        try:
            sent = await producer.send_and_wait("again", b"new %d" % len(offsets), partition=1)
        except TopicRecreatedError:
            continue
        offsets.append(sent.offset)
    return offsets
