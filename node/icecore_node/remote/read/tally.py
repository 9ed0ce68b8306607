"""Counts of the requests to object storage that one request caused.

A read shared by several requests counts for the one that began it. The tally is found through the
context of the running task, because between the two lie parts that know of no requests.

This is a file of its own because searches count also where the libraries of object storage are not
installed, which its neighbours import.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Number and bytes of the reads of object storage that one request caused."""

    requests: int = 0
    length_bytes: int = 0

    def begin(self) -> None:
        """Count here what the current task, and those that it starts, ask for."""
        _CURRENT.set(self)


_CURRENT: ContextVar[Tally | None] = ContextVar("remote_tally", default=None)


def note_request(length_bytes: int) -> None:
    """One request to the store was answered."""
    tally = _CURRENT.get()
    if tally is not None:
        tally.requests += 1
        tally.length_bytes += length_bytes
