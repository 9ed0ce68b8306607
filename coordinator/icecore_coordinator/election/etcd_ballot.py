"""The election in etcd: a key with a lease for each candidate, beside the metadata.

Keys are ``candidate/<member>/<lease>`` below the prefix, and their values name addresses. The one
that was made first is elected. A process that starts again removes what it stood with before, so
nobody waits for the lease of the dead one.
"""

import asyncio
import contextlib
import json
import math
from collections.abc import Sequence
from typing import Any, Final

from icecore.errors import ConfigurationError, StorageError
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.election.ballot import CandidateSession
from icecore_coordinator.election.candidacy import Candidate
from icecore_coordinator.stores.etcd_client import CompactedError, EtcdClient
from icecore_coordinator.stores.etcd_layout import CANDIDATES
from icecore_coordinator.stores.etcd_messages import delete_all, end_of, put

_ATTEMPTS: Final = 5
"""Members that can be asked within one session."""


class EtcdBallot:
    """``Ballot`` in etcd. It has connections of its own: no change of metadata holds them up.

    Args:
        settings: Where etcd is, and who asks.
        member: Identity of the data folder.
    """

    def __init__(self, settings: EtcdSettings, member: str) -> None:
        self._member = member
        self._ttl_s = math.ceil(settings.session_ms / 1000)
        attempt_ms = min(settings.attempt_ms, settings.session_ms // _ATTEMPTS)
        waits = {"attempt_ms": attempt_ms, "timeout_ms": settings.session_ms}
        self._client = EtcdClient(settings.model_copy(update=waits))
        # The watch goes from member to member by itself.
        self._watcher = EtcdClient(settings.model_copy(update=waits))
        self._keys = settings.prefix.encode() + CANDIDATES

    async def enter(self, address: str) -> CandidateSession:
        """See ``Ballot.enter``."""
        mine = self._keys + self._member.encode() + b"/"
        lease, ttl_s = await self._client.grant(self._ttl_s)
        key, value = mine + f"{lease:016x}".encode(), json.dumps({"address": address}).encode()
        await self._client.txn([], [delete_all(mine)], [])
        await self._client.txn([], [put(key, value, lease)], [])
        return CandidateSession(lease, ttl_s * 1000)

    async def renew(self, session: int) -> float:
        """See ``Ballot.renew``."""
        return await self._client.keep_alive(session) * 1000

    async def leave(self, session: int) -> None:
        """See ``Ballot.leave``."""
        await self._client.revoke(session)

    async def candidates(self) -> tuple[Sequence[Candidate], int]:
        """See ``Ballot.candidates``."""
        answer = await self._client.range(self._keys, end_of(self._keys))
        rows = sorted(answer.kvs, key=lambda row: row.create_revision)
        return [self._candidate(row) for row in rows], answer.header.revision

    async def changed(self, mark: int, within_s: float) -> None:
        """See ``Ballot.changed``."""
        with contextlib.suppress(TimeoutError, CompactedError):
            async with asyncio.timeout(within_s):
                changes = self._watcher.watch(
                    self._keys, end_of(self._keys), mark + 1, silence_s=within_s
                )
                async with contextlib.aclosing(changes):
                    async for change in changes:
                        if change.events:
                            return
                raise StorageError("a watch has ended")

    async def close(self) -> None:
        """See ``Ballot.close``."""
        await self._client.close()
        await self._watcher.close()

    def _candidate(self, row: Any) -> Candidate:
        member, _, session = row.key[len(self._keys) :].decode(errors="replace").partition("/")
        try:
            return Candidate(int(session, 16), member, str(json.loads(row.value)["address"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"etcd has a candidate {row.key.decode(errors='replace')!r} that is none of"
                " icecore's: give another etcd.prefix, or remove the key"
            ) from error
