"""A cache of partition leaders, refreshed when a node turns out not to lead.

Requests to refresh coalesce into one call, and calls keep a distance, so that a failover with a
thousand partitions does not become a thousand questions.
"""

import asyncio
from collections.abc import Callable

from icecore.client.cluster.cluster_view import NO_PARTITIONS, ClusterView, has_moved
from icecore.client.cluster.connection import STALE_MS, Backoff, Connection, share
from icecore.client.cluster.leader_waits import LeaderWaits
from icecore.client.types import TopicMetadata
from icecore.errors import IcecoreError, TopicRecreatedError, UnknownTopicError
from icecore.v1 import admin_pb2

_DISTANCE_MS = 40.0
_AGE_MS_MAX = 60_000.0
_OPINIONS_MAX = 3
"""So many servers are asked about a topic that is new here while what they know is old: one that
was cut off for long must not say alone which topic it is that has the name."""
_OPINIONS_MS = 1_000.0
"""All but the first answer within so long."""
_WAIT_LEAST_S = 0.05
"""A question that is asked at all may take so long."""


class Metadata:
    """The cluster as last seen (``view``), and the questions that keep it up to date.

    Args:
        connection: The way to the coordinator.
        timeout_s: How long one refresh may take, over all coordinators.
    """

    def __init__(self, connection: Connection, *, timeout_s: float = 10.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._names: set[str] = set()
        self._view = ClusterView(transport=connection.transport)
        self._errors: dict[str, IcecoreError] = {}
        self._running: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None
        self._refreshed = asyncio.Event()
        """Set for a moment after each answer."""
        self._refreshed_ms = -_DISTANCE_MS
        self._newest_ms = 0.0
        self._leader_waits = LeaderWaits(connection.rng, self.refresh, self._is_led)
        self.on_recreated: Callable[[], None] = lambda: None
        """Called when a topic turns out to be another one than before."""

    @property
    def view(self) -> ClusterView:
        """The newest answers together; ask for it anew, because it is replaced by the next one."""
        return self._view

    @property
    def newest_ms(self) -> float:
        """A moment of the monotonic clock: a coordinator knew nothing newer than ``view`` then."""
        return self._newest_ms

    def known(self, topic: str) -> TopicMetadata | None:
        """The topic as last seen, None when it was never found."""
        return self._view.topics.get(topic)

    def error(self, topic: str) -> IcecoreError | None:
        """Return the coordinator's last error for the topic, None when there is none."""
        return self._errors.get(topic)

    def recreated(self, topic: str, topic_id: bytes) -> TopicRecreatedError | None:
        """Return why nothing can be appended to the topic with this id any more, None when it
        exists.

        Its records were meant for that topic, and keys for its partitions: whether the new one
        should have them is not for us to say.
        """
        known = self.known(topic)
        if known is None or known.topic_id == topic_id:
            return None
        return topic_recreated(topic, topic_id, known.topic_id)

    def forget(self, topic: str) -> None:
        """Ask no more about a topic, until somebody wants it again."""
        self._names.discard(topic)
        self._errors.pop(topic, None)

    async def topic(
        self, name: str, *, timeout_s: float, is_fresh: bool = False, wait_s: float = 0
    ) -> TopicMetadata:
        """The topic, asked for until it is known whether it is there.

        That there is none is final once it was so after the question began: a coordinator knows
        it at once, and a node once it has heard of a coordinator. A node that hears of none is
        never believed: the topic may have been made just before the coordinator went away.

        Args:
            name: Of the topic.
            timeout_s: Until somebody answers, and until the topic has partitions.
            is_fresh: Ask even if it is known.
            wait_s: How long a topic that does not exist may take to be made.

        Raises:
            UnknownTopicError: It does not exist.
            IcecoreError: No coordinator answered in time.
        """
        self._names.add(name)
        began_ms = self._now_ms()
        end_ms = began_ms + 1000 * max(timeout_s, wait_s)
        backoff = Backoff(self._connection.rng)
        answer: IcecoreError | None = None
        while True:
            self._connection.check_open()
            error: IcecoreError
            try:
                if is_fresh or name not in self._view.topics or name in self._errors:
                    left_ms = end_ms - self._now_ms()
                    await self.refresh(timeout_s=max(_WAIT_LEAST_S, left_ms / 1000))
                found = self._view.topics.get(name)
                if found is not None and name not in self._errors:
                    return found
                error = answer = self._errors.get(name) or UnknownTopicError(f"no topic {name}")
                is_final = self._is_final(error, since_ms=began_ms, wait_s=wait_s)
            except IcecoreError as caught:
                error, is_final = caught, not caught.retriable
            delay_s = backoff.next_s(error)
            past = self._now_ms() + delay_s * 1000 >= end_ms
            if is_final:
                raise error
            if past:  # The last attempt has little time: an answer to an earlier one says more.
                raise answer or error
            await asyncio.sleep(delay_s)

    def _is_final(self, error: IcecoreError, *, since_ms: float, wait_s: float) -> bool:
        """Return whether an answer that there is no such topic ends the wait for it, which has
        lasted since then."""
        if not _is_absence(error):
            return False
        return self._newest_ms >= since_ms and self._now_ms() >= since_ms + 1000 * wait_s

    async def refresh(self, *, is_newer: bool = False, timeout_s: float | None = None) -> None:
        """Ask the coordinator again; concurrent callers share one question. With ``is_newer`` it is
        one that goes out after the call: the answer to an earlier one may be out of date. A caller
        that waits for less than the question may take leaves it to the others.

        Raises:
            IcecoreError: No coordinator answered in time.
        """
        running = self._running
        if is_newer and running is not None:
            await asyncio.wait({running})
            running = self._running
        if running is None or running.done():
            running = self._running = share(self._refresh())
        # Not awaited itself: a caller that is cancelled must not take the others' answer away.
        await asyncio.wait({running}, timeout=timeout_s)
        if not running.done():
            raise self._connection.no_answer(timeout_s or self._timeout_s)
        running.result()

    async def until_moved(self, topic: str, partition: int, timeout_s: float) -> bool:
        """Sleep, but only until somebody's refresh shows a new leader of the partition; whether
        one did."""
        before = self._view.partition(topic, partition)
        try:
            async with asyncio.timeout(timeout_s):
                while not has_moved(before, self._view.partition(topic, partition)):
                    await self._refreshed.wait()
        except TimeoutError:
            return False
        return True

    async def until_led(self, topic: str, partition: int, timeout_s: float) -> bool:
        """Sleep until a partition that has no leader has one, while one task asks for all who wait;
        False when it has none in time."""
        return await self._leader_waits.until_led(topic, partition, timeout_s)

    def watch(self, on_look: Callable[[], None]) -> None:
        """Until ``close``, ask again what nobody asked for a minute, and call ``on_look`` every
        half: that partitions were added shows in nothing else while nothing fails."""
        self._watching = share(self._watch(on_look))

    async def _watch(self, on_look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_AGE_MS_MAX / 2000)
            try:
                if self._names and self._age_ms() > _AGE_MS_MAX:
                    await self.refresh()
            except IcecoreError:
                continue  # who needs it now finds out and says so
            on_look()

    async def close(self) -> None:
        """Stop watching, and a refresh that is under way."""
        await self._leader_waits.close()
        tasks = [task for task in (self._watching, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _refresh(self) -> None:
        if (wait_ms := _DISTANCE_MS - self._age_ms()) > 0:
            await asyncio.sleep(wait_ms / 1000)
        before, names = self._view, sorted(self._names)
        asked_ms = self._now_ms()
        answer = await self._ask(before, names, self._timeout_s)
        view, errors = self._with(answer, before, self._errors)
        newest_ms = asked_ms - answer.age_ms  # on its way it grew older
        if any(name not in before.topics for name in names):
            end_ms = self._now_ms() + _OPINIONS_MS
            for _ in range(_OPINIONS_MAX - 1):
                left_ms = end_ms - self._now_ms()
                if answer.age_ms <= STALE_MS or left_ms <= 0:
                    break
                asked_ms = self._now_ms()
                try:
                    answer = await self._ask(view, names, left_ms / 1000)
                except IcecoreError:
                    break  # nobody else is there
                view, errors = self._with(answer, view, errors)
                newest_ms = max(newest_ms, asked_ms - answer.age_ms)
        self._view = view  # while it was asked, some topic may have been forgotten
        self._errors = {name: why for name, why in errors.items() if name in self._names}
        self._newest_ms = max(self._newest_ms, newest_ms)
        self._refreshed_ms = self._now_ms()
        self._refreshed.set()
        self._refreshed.clear()
        self._leader_waits.look()
        if view.has_other_topic_than(before):
            self.on_recreated()

    async def _ask(
        self, view: ClusterView, names: list[str], timeout_s: float
    ) -> admin_pb2.GetMetadataResponse:
        """About these topics, for who knows ``view``; who answers for another cluster is passed
        by."""
        coordinator_epoch, version = view.base(names)
        request = admin_pb2.GetMetadataRequest(
            topics=names, known_coordinator_epoch=coordinator_epoch, known_version=version
        )
        left_s, end_ms = timeout_s, self._now_ms() + timeout_s * 1000
        while left_s > 0:
            answer = await self._connection.admin(
                "GetMetadata", request, admin_pb2.GetMetadataResponse, timeout_s=left_s
            )
            if self._connection.check_server(answer.cluster_id):
                return answer
            left_s = (end_ms - self._now_ms()) / 1000
        raise self._connection.no_answer(timeout_s)

    def _with(
        self,
        answer: admin_pb2.GetMetadataResponse,
        before: ClusterView,
        errors: dict[str, IcecoreError],
    ) -> tuple[ClusterView, dict[str, IcecoreError]]:
        """Return the view and the errors by topic after one more answer."""
        view, refused = before.after(answer), before.errors_of(answer)
        if before.is_newer_than(answer):  # what it has not heard of may be there
            refused = {name: why for name, why in refused.items() if name not in before.topics}
        told = {message.name for message in answer.topics}
        left = {name: why for name, why in errors.items() if name not in told}
        up = (view.address(each) for each in view.nodes if view.is_up(each))
        self._connection.meet((each for each in up if each), answer.age_ms, answer.cluster_id)
        return view, left | refused

    def _is_led(self, topic: str, partition: int) -> bool:
        return bool(self._view.leader(topic, partition))

    def _age_ms(self) -> float:
        """Since the last answer."""
        return self._now_ms() - self._refreshed_ms

    def _now_ms(self) -> float:
        return self._connection.clock.monotonic_ms()


def _is_absence(error: IcecoreError | None) -> bool:
    """Return whether it says that there is no such topic, and none that is being made."""
    return isinstance(error, UnknownTopicError) and NO_PARTITIONS not in error.metadata


def topic_deleted(metadata: Metadata, name: str, since_ms: float) -> UnknownTopicError | None:
    """Return why nothing can be appended to a topic that was found before, None while it may be
    there.

    Args:
        metadata: Has asked for the topic.
        name: Of the topic.
        since_ms: Only who heard of a coordinator after this moment is believed.
    """
    if metadata.newest_ms < since_ms or not _is_absence(metadata.error(name)):
        return None
    return UnknownTopicError(
        f"topic {name} was deleted: nothing can be appended to it; bring it back with "
        f"icecore topic undelete {name}, or create it again, then send the records again",
        topic=name,
    )


def topic_recreated(name: str, before: bytes, now: bytes) -> TopicRecreatedError:
    """The error of who meant the topic that had the id ``before``."""
    return TopicRecreatedError(
        f"topic {name} was deleted and made again: {before.hex()} was meant, {now.hex()} is there; "
        "offsets and unsent records of the old one mean nothing in the new one",
        topic=name,
        topic_id=before.hex(),
        new_topic_id=now.hex(),
    )
