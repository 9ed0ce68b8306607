"""Saved positions of a fake cluster: a compare-and-set in a dict, which can be told to fail."""

from collections.abc import Callable
from typing import Any

from icecore.errors import IcecoreError, PositionConflictError, UnknownTopicError
from icecore.rpc import convert
from icecore.rpc.ports import CallContext
from icecore.v1 import admin_pb2


class FakePositions:
    """The saved positions: offset, version and instance by name, topic id and partition."""

    def __init__(self, name_of: Callable[[bytes], str], has_topic: Callable[[str], bool]) -> None:
        self._name_of = name_of
        self._has_topic = has_topic
        self.saved: dict[tuple[str, bytes, int], tuple[int, int, int]] = {}
        self.calls = 0
        self.on_save: Callable[[], IcecoreError | None] = lambda: None
        self.on_saved: Callable[[], IcecoreError | None] = lambda: None
        self.on_answer: Callable[[admin_pb2.SavePositionsResponse], None] = lambda _: None

    def handlers(self) -> dict[str, Any]:
        methods = {"SavePositions": self._save, "ListPositions": self._list}
        return {f"/icecore.v1.AdminService/{name}": each for name, each in methods.items()}

    def offsets(self, name: str) -> dict[tuple[str, int], int]:
        """Return the offsets saved under a name, by topic and partition."""
        return {
            (self._name_of(topic_id), partition): offset
            for (of, topic_id, partition), (offset, _, _) in self.saved.items()
            if of == name
        }

    async def _save(self, body: bytes, _: CallContext) -> bytes:
        self.calls += 1
        request = admin_pb2.SavePositionsRequest.FromString(body)
        if (error := self.on_save()) is not None:
            raise error
        answer = admin_pb2.SavePositionsResponse()
        for each in request.positions:
            outcome = answer.outcomes.add()
            try:
                outcome.version = self._store(request, each)
            except IcecoreError as refused:
                outcome.error.CopyFrom(convert.error_to_proto(refused))
        if (error := self.on_saved()) is not None:
            raise error
        self.on_answer(answer)
        return answer.SerializeToString()

    def _store(self, request: Any, each: Any) -> int:
        if not self._name_of(each.topic_id):
            raise UnknownTopicError("gone")
        key = (request.name, each.topic_id, each.partition)
        offset, version, instance = self.saved.get(key, (0, 0, 0))
        if version != each.version:
            raise PositionConflictError(offset=offset, version=version, instance=instance)
        self.saved[key] = (each.offset, version + 1, request.instance)
        return version + 1

    async def _list(self, body: bytes, _: CallContext) -> bytes:
        """One position to a page."""
        request = admin_pb2.ListPositionsRequest.FromString(body)
        if not all(map(self._has_topic, request.topics)):
            raise UnknownTopicError("no such topic")
        answer = admin_pb2.ListPositionsResponse()
        keys = sorted(key for key in self.saved if key[0] == request.name or not request.name)
        start = int(request.after or "0")
        for name, topic_id, partition in keys[start : start + 1]:
            topic = self._name_of(topic_id)
            if topic and (topic in request.topics or not request.topics):
                offset, version, instance = self.saved[name, topic_id, partition]
                answer.positions.add(
                    name=name,
                    topic=topic,
                    topic_id=topic_id,
                    partition=partition,
                    offset=offset,
                    version=version,
                    instance=instance,
                )
        answer.next = str(start + 1) if start + 1 < len(keys) else ""
        return answer.SerializeToString()
