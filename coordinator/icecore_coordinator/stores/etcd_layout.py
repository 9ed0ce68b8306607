"""The keys of a cluster in etcd, all below its prefix, and the first row among them.

``head`` has the identity of the metadata, their writer, and the count of changes; ``record/…`` has
the records, ``staged/…`` the rows of a change that is larger than a transaction, ``candidate/…``
the election. ``etcd_store.py`` says how they change together.
"""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from icecore.errors import ConfigurationError

HEAD: Final = b"head"
RECORDS: Final = b"record/"
STAGED: Final = b"staged/"
CANDIDATES: Final = b"candidate/"

FORMAT: Final = 1
"""The form of everything below the prefix."""


@dataclass(frozen=True, slots=True)
class EtcdHead:
    """The first row."""

    format: int
    store: str
    """Identity of these metadata: made with them, and never altered."""
    epoch: int
    holder: str
    """Made by each holder of the epoch for itself."""
    revision: int
    staged: int = 0
    """Parts of a change that has happened, and that are not all in their places."""

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> "EtcdHead":
        """Raises ConfigurationError where it is none of ours."""
        try:
            found = json.loads(value)
            if found["format"] > FORMAT:
                raise ConfigurationError(
                    "a later version of icecore wrote these metadata into etcd: run that one"
                )
            return cls(**found)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"etcd has a head that is none of icecore's ({error}): give another etcd.prefix"
            ) from error


class TxnOutcome(Enum):
    """The end of a transaction that compares the head (R120)."""

    DONE = "done"
    """All of it happened, now or when it was sent the first time."""
    REFUSED = "refused"
    """The head is ours, and another condition did not hold: nothing happened."""
    SUPERSEDED = "superseded"
    """The head is another one: nothing happened."""
    UNKNOWN = "unknown"
    """The head is another one by now. Nobody knows whether it happened before."""


def outcome_of(
    head: EtcdHead, after: EtcdHead, found: EtcdHead | None, *, is_done: bool, is_repeated: bool
) -> TxnOutcome:
    """Judge an answer of etcd.

    Args:
        head: What was compared.
        after: What the transaction puts in its place; the same = it changes nothing.
        found: The head there is, where conditions did not hold.
        is_done: Whether they held.
        is_repeated: The call was sent before, and may have been carried out then.
    """
    if is_done or (after != head and found == after):
        return TxnOutcome.DONE
    if found == head:
        return TxnOutcome.REFUSED
    return TxnOutcome.UNKNOWN if is_repeated else TxnOutcome.SUPERSEDED
