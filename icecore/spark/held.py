"""Holds a topic as it is, for as long as a job works on it.

The coordinator is asked to hold first, and for offsets then: nothing of them goes by itself until
the hold ends. It is renewed from a thread while the ``with`` lasts, and ends by itself when the job
dies.
"""

import logging
import threading
from types import TracebackType
from typing import Self

from icecore.blocking import Admin
from icecore.errors import ConfigurationError, ConflictError, IcecoreError, TopicRecreatedError
from icecore.process.log import event
from icecore.spark.options import AsOf, as_of_text
from icecore.spark.snapshot import ADMIN_TIMEOUT_S, take_snapshot

_log = logging.getLogger(__name__)

HOLD_S_MAX = 24 * 3600.0
_RENEWALS = 3
"""So many times within a hold."""


class HeldSnapshot:
    """A moment of a topic, held while a ``with`` lasts; ``hold`` makes one.

    ``as_of`` goes into the option ``asOf`` of any number of reads, also in other processes.
    """

    def __init__(self, admin: Admin, topic: str, moment: AsOf, hold_ms: int) -> None:
        self._admin = admin
        self._topic = topic
        self._moment = moment
        self._hold_ms = hold_ms
        self._is_over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()

    @property
    def as_of(self) -> str:
        """The moment, as the option has it."""
        return as_of_text(self._moment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go. A second time does nothing."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._renewing.join()
        try:
            self._admin.release_snapshot(self._topic, self._moment.lease_id)
        except IcecoreError as error:
            event(_log, logging.WARNING, "hold_not_released", topic=self._topic, error=error)
        finally:
            self._admin.close()

    def _renew(self) -> None:
        while not self._is_over.wait(self._hold_ms / 1000 / _RENEWALS):
            try:
                self._admin.hold_snapshot(
                    self._topic, self._hold_ms, lease_id=self._moment.lease_id
                )
            except ConflictError as error:
                event(_log, logging.ERROR, "hold_lost", topic=self._topic, error=error)
                return
            except IcecoreError as error:
                event(_log, logging.WARNING, "hold_not_renewed", topic=self._topic, error=error)


def hold(
    topic: str, *, bootstrap: str, hold_s: float = 600.0, owner: str = "spark"
) -> HeldSnapshot:
    """Take a snapshot of a topic and hold it.

    Args:
        topic: Its name.
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        hold_s: How long it lasts after the last renewal, so that is when it ends if the job dies.
        owner: Whom operators are to ask.

    Raises:
        ConfigurationError: ``hold_s`` is out of range.
        IcecoreError: There is no such topic, it has too many holds, or nobody answered in time.
    """
    if not 1 <= hold_s <= HOLD_S_MAX:
        raise ConfigurationError(f"hold_s is 1 to {HOLD_S_MAX:g}, not {hold_s}")
    admin, hold_ms = Admin(bootstrap, timeout_s=ADMIN_TIMEOUT_S), int(hold_s * 1000)
    try:
        held = admin.hold_snapshot(topic, hold_ms, owner=owner)
        snapshot = take_snapshot(admin, topic, with_segments=False)
        if snapshot.topic_id != held.topic_id:
            raise TopicRecreatedError(f"topic {topic} was deleted and made again meanwhile")
    except IcecoreError:
        admin.close()
        raise
    moment = AsOf(
        held.topic_id,
        held.lease_id,
        {number: each.log_start_offset for number, each in snapshot.partitions.items()},
        {number: each.high_watermark for number, each in snapshot.partitions.items()},
    )
    return HeldSnapshot(admin, topic, moment, hold_ms)
