"""Messages of a job while it runs, and the one line of figures at its end.

Notes for people go to stderr. The last line on stdout is JSON with the fields of ``Metrics``,
whatever happened, so that a scheduler needs to parse nothing else.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

SCHEMA: Final = "icecore.spark.job/1"
"""Its number changes when a field goes away or means something else."""
_SHOWN_MAX: Final = 20


@dataclass(slots=True, kw_only=True)
class Metrics:
    """The figures of one run."""

    schema: str = SCHEMA
    job: str
    status: str = "failed"
    """``done``, ``planned`` (a dry run), ``differs`` (reconcile found something), ``failed``."""
    topic: str
    topic_id: str = ""
    records_read: int = 0
    records_written: int = 0
    records_quarantined: int = 0
    segments_merged: int = 0
    """Small segments that rewrite merged; ``steps_done`` counts the segments that replaced them."""
    segments_left: int = 0
    """Segments that fit together and can't be merged; the notes say why."""
    bytes_read: int = 0
    """Object bytes that rewrite has read."""
    bytes_written: int = 0
    """Object bytes that rewrite has written."""
    findings: int = 0
    """Number of problems that reconcile found."""
    steps_done: int = 0
    """Steps done by this run."""
    steps_found_done: int = 0
    """Steps done by earlier runs."""
    start_offsets: dict[str, int] = field(default_factory=dict)
    """Start of the offsets that this run reads, or would read, by partition."""
    end_offsets: dict[str, int] = field(default_factory=dict)
    output: str = ""
    """Location of the result."""
    elapsed_s: float = 0.0
    error: str = ""
    """The reason and what it says; empty unless it failed."""


def json_schema() -> dict[str, Any]:
    """JSON Schema of the last line."""
    kinds = {str: "string", int: "integer", float: "number"}
    properties: dict[str, Any] = {
        each.name: {"type": kinds[each.type]} if each.type in kinds else _OFFSETS
        for each in fields(Metrics)
    }
    properties["schema"] = {"const": SCHEMA}
    return {"type": "object", "properties": properties, "required": list(properties)}


_OFFSETS: Final = {"type": "object", "additionalProperties": {"type": "integer"}}


class Report:
    """Progress and result of one run.

    Args:
        job: Its name.
        topic: Of the run.
    """

    def __init__(self, job: str, topic: str) -> None:
        self.metrics = Metrics(job=job, topic=topic)
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        """A line for people."""
        seconds = time.monotonic() - self._began
        print(f"{seconds:7.1f} s  {self.metrics.job}: {text}", file=sys.stderr, flush=True)

    def finding(self, text: str) -> None:
        """Something that is wrong in what was looked at."""
        self.metrics.findings += 1
        if self.metrics.findings <= _SHOWN_MAX:
            self.note(text)
        elif self.metrics.findings == _SHOWN_MAX + 1:
            self.note("more of them are counted only")

    def failed(self, error: str) -> None:
        """The run has ended before its time."""
        self.metrics.status, self.metrics.error = "failed", error
        self.note(f"error: {error}")

    def last_line(self) -> str:
        """The figures, as JSON."""
        self.metrics.elapsed_s = round(time.monotonic() - self._began, 3)
        return json.dumps(asdict(self.metrics), ensure_ascii=False)
