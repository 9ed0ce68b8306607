"""Bounded traffic through the public clients and past them, recorded while it happens.

Six producers of all acks levels send unique values in small batches; consumers read behind them,
one for the whole run and one that begins again; records are looked up (``search.py``); and each
node is asked directly what it would show, which a client with a fresh view of the cluster would not
do to a node that lost its leadership.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from icecore import Consumer, Producer
from icecore.client.produce.batches import SendHandle
from icecore.codec.batch import iter_batches
from icecore.codec.decoding import decode
from icecore.codec.record import Record
from icecore.errors import IcecoreError
from icecore.rpc import framing
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import data_pb2
from tests.chaos.record import Recorder, value_of
from tests.chaos.search import Searches
from tests.simulation.labels import key_of, tags_of

PARTITIONS = 3
BURST_S = 0.1
"""Between two bursts of a producer."""
PENDING_BURSTS_MAX = 400
REREAD_S = 6.0
DIRECT_S = 0.15
SETTLE_S = 60.0
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producer. ``is_patient``: it keeps the default timeouts, and may be told of no error."""

    name: str
    acks: str
    burst: int
    is_patient: bool = True
    options: Mapping[str, Any] | None = None


PRODUCERS = (
    ProducerPlan("all-1", "all", 27),
    ProducerPlan("all-2", "all", 27),
    ProducerPlan("all-3", "all", 15, False, {"delivery_timeout_ms": 1500, "linger_ms": 0}),
    ProducerPlan("quorum-1", "quorum", 18),
    ProducerPlan("quorum-2", "quorum", 12, False, {"request_timeout_ms": 700}),
    ProducerPlan("leader-1", "leader", 18),
)


class Load:
    """Starts with ``start``; ``stop`` returns when every record has its outcome.

    Args:
        bootstrap: The coordinator's address.
        topic: Exists, with ``PARTITIONS`` partitions.
        recorder: Takes everything.
        nodes: Of all nodes by now: id to (address, pid).
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        recorder: Recorder,
        nodes: Callable[[], Mapping[int, tuple[str, int]]],
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._recorder = recorder
        self._nodes = nodes
        self._net = GrpcNet()
        self._producing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self.acked = 0
        self.errors: list[str] = []
        """Errors that patient producers were told."""
        self.problems: list[str] = []
        """Events that must not happen to a client."""

    def start(self) -> None:
        """Begin to send and to read."""
        self._producing = [asyncio.create_task(self._produce(plan)) for plan in PRODUCERS]
        searches = Searches(self._bootstrap, self._topic, self._recorder, self._bootstrap)
        readers = (self._consume_all(), self._consume_again(), self._ask_nodes(), searches.run())
        self._reading = [asyncio.create_task(reader) for reader in readers]

    async def stop(self) -> None:
        """No new records; wait for the outcome of those under way, and let the readers end."""
        self._stopping.set()
        done, late = await asyncio.wait(self._producing, timeout=SETTLE_S)
        for task in late:
            task.cancel()
            self.problems.append(f"records had no outcome {SETTLE_S:g} s after the load ended")
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*late, *self._reading, return_exceptions=True)
        await self._net.close()
        for task in (*done, *self._reading):
            if not task.cancelled() and (error := task.exception()) is not None:
                self.problems.append(f"a client ended with {error!r}")

    # --- producers ------------------------------------------------------------------------------

    async def _produce(self, plan: ProducerPlan) -> None:
        counts = [0] * PARTITIONS
        pending: set[asyncio.Task[None]] = set()
        async with contextlib.AsyncExitStack() as stack:
            options = dict(plan.options or {})
            producer = Producer(self._bootstrap, acks=plan.acks, **options)  # type: ignore[arg-type]
            await producer.start()
            stack.push_async_callback(self._close, producer)
            while not self._stopping.is_set():
                if len(pending) < PENDING_BURSTS_MAX:
                    for partition in range(PARTITIONS):
                        count = plan.burst // PARTITIONS
                        sent = [
                            self._send(producer, plan, partition, counts[partition] + number)
                            for number in range(count)
                        ]
                        counts[partition] += count
                        task = asyncio.create_task(self._note(plan, partition, sent))
                        pending.add(task)
                        task.add_done_callback(pending.discard)
                await asyncio.sleep(BURST_S)
            while pending:
                await asyncio.wait(set(pending))

    @staticmethod
    async def _close(producer: Producer) -> None:
        # Each record's own outcome is recorded already; that some have none is known as well.
        with contextlib.suppress(IcecoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await producer.close()

    def _send(
        self, producer: Producer, plan: ProducerPlan, partition: int, number: int
    ) -> tuple[str, SendHandle]:
        value_id = f"{plan.name}/{partition}/{number}"
        self._recorder.write(
            "produce",
            type="invoke",
            process=plan.name,
            partition=partition,
            value=value_id,
            acks=plan.acks,
            seq=number,
        )
        handle = producer.send(
            self._topic,
            value_of(value_id),
            key=key_of(value_id.encode()),
            tags=tags_of(value_id.encode()),
            partition=partition,
        )
        return value_id, handle

    async def _note(
        self, plan: ProducerPlan, partition: int, sent: list[tuple[str, SendHandle]]
    ) -> None:
        """The outcome of the records of one burst in one partition."""
        told = ""
        for value_id, handle in sent:
            outcome: dict[str, object]
            try:
                outcome = {"type": "ok", "offset": (await handle).offset}
                self.acked += 1
            except IcecoreError as error:
                told = repr(error)
                outcome = {"type": "info" if error.indeterminate else "fail", "error": told}
            self._recorder.write("produce", partition=partition, value=value_id, **outcome)
        if told and plan.is_patient:
            self.errors.append(f"{plan.name}: partition {partition}: {told}")

    # --- readers --------------------------------------------------------------------------------

    async def _consume_all(self) -> None:
        await self._poll("consumer-1", None)

    async def _consume_again(self) -> None:
        """From the start, again and again: sealed segments are read too, wherever they are."""
        life = 0
        while True:
            life += 1
            await self._poll(f"consumer-2#{life}", REREAD_S)

    async def _poll(self, session: str, for_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + for_s if for_s is not None else float("inf")
        try:
            async with Consumer(self._bootstrap, self._topic, timeout_s=60.0) as consumer:
                while loop.time() < ends_s:
                    self._record(session, await consumer.poll(0.5, 500))
                    await asyncio.sleep(0.02)
        except IcecoreError as error:
            self.problems.append(f"{session} was told {error!r}")
            await asyncio.sleep(1.0)

    def _record(self, session: str, records: list[Record]) -> None:
        if records:
            pairs = [(each.offset, each.value) for each in records]
            self._recorder.read(session, records[0].partition, pairs)

    async def read_to_end(self) -> None:
        """After the load: a consumer reads everything, from the log start to the watermark."""
        session = "consumer-final"
        async with Consumer(self._bootstrap, self._topic, stop_at_end=True) as consumer:
            while not consumer.is_at_end:
                self._record(session, await consumer.poll(5.0))
        self._recorder.write("whole-session", process=session)

    async def _ask_nodes(self) -> None:
        """Each node on its own, from the start, whatever it believes to be."""
        asking: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                for node_id in self._nodes():
                    if node_id not in asking:
                        asking[node_id] = asyncio.create_task(self._ask_node(node_id))
                await asyncio.sleep(1.0)
        finally:
            await _cancel(asking.values())

    async def _ask_node(self, node_id: int) -> None:
        offsets = [0] * PARTITIONS
        while True:
            address, pid = self._nodes()[node_id]
            with contextlib.suppress(IcecoreError):
                await self._ask(f"node-{node_id}", f"node-{node_id}#{pid}", address, offsets)
            await asyncio.sleep(DIRECT_S)

    async def _ask(self, session: str, observer: str, address: str, offsets: list[int]) -> None:
        header = data_pb2.FetchHeader(max_bytes=1 << 20)
        for partition, offset in enumerate(offsets):
            header.partitions.add(topic=self._topic, partition=partition, offset=offset)
        request = data_pb2.FetchRequest(header=header).SerializeToString()
        method = "/icecore.v1.DataService/Fetch"
        body = await self._net.call(address, method, request, timeout_s=1.0)
        raw, data = framing.split_bulk(body, data_pb2.FetchResponse)
        results = data_pb2.FetchResponseHeader.FromString(raw).partitions
        at = 0
        for partition, result in enumerate(results):
            piece = data[at : at + result.batches_length]
            at += result.batches_length
            if result.HasField("error") or not result.segment_id:
                continue  # or the answer was full before its turn
            records: list[tuple[int, bytes | None]] = []
            for position, found in iter_batches(piece):
                rows = decode(piece, position, found).to_records(found.base_offset)
                records += [(row.offset, row.value) for row in rows]
            records = [each for each in records if each[0] >= offsets[partition]]
            self._recorder.read(session, partition, records)
            self._recorder.write(
                "watermark", process=observer, partition=partition, offset=result.high_watermark
            )
            offsets[partition] = result.next_offset


async def _cancel(tasks: Any) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
