"""Production logs in one dialect, through one helper (``icecore/process/log.py``)."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import FOLDERS, Module, dotted, parse, problems

HELPER = "icecore/process/log.py"
METHODS = frozenset(
    ["debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"]
)
LOGGER = re.compile(r"(^|[._])(log|logger|logging)$")
NAME = re.compile(r"[a-z][a-z0-9_]*")
SPELLED = {
    "segment": "segment_id",
    "segments_ids": "segment_ids",
    "node": "node_id",
    "nodes_ids": "node_ids",
    "err": "error",
    "reason": "why",
    "topicid": "topic_id",
}
"""Keys that have one agreed spelling."""


def by_hand(module: Module) -> Iterator[str]:
    """A log line is an event with keys and values, never a sentence."""
    if module.package not in FOLDERS or module.path == HELPER:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            if LOGGER.search(dotted(node.func.value)):
                yield f"{node.lineno}: log through icecore.process.log.event"
        elif dotted(node.func) == "event":
            yield from _wrong_in(node)


def _wrong_in(call: ast.Call) -> Iterator[str]:
    name = call.args[2] if len(call.args) > 2 else None
    if not isinstance(name, ast.Constant) or not NAME.fullmatch(str(name.value)):
        yield f"{call.lineno}: an event has a name, as it is: what differs are values"
    for keyword in call.keywords:
        if keyword.arg is None:
            yield f"{call.lineno}: keys are written out"
        elif keyword.arg in SPELLED:
            yield f"{call.lineno}: {keyword.arg}= is spelled {SPELLED[keyword.arg]}="


def loggers(module: Module) -> Iterator[str]:
    """A file has one logger, ``_log``, with the name of the file."""
    if module.package not in FOLDERS:
        return
    spelled = {
        id(node.value)
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node) == "_log = logging.getLogger(__name__)"
    }
    for node in ast.walk(module.tree):
        is_logger = isinstance(node, ast.Call) and dotted(node.func) == "logging.getLogger"
        if is_logger and id(node) not in spelled:
            yield f"{node.lineno}: the logger is _log = logging.getLogger(__name__)"


def test_the_tree_logs_events() -> None:
    found = [each for rule in (by_hand, loggers) for each in problems(rule)]
    assert not found, "\n".join(found)


FILE = "node/icecore_node/a.py"


@pytest.mark.parametrize(
    "text",
    [
        "_log.info('event=node_up node=%d', 1)",
        "self._log.error('it broke')",
        "logging.warning('x')",
        "logger.exception('x')",
        "event(_log, logging.INFO, f'deleted {it}')",
        "event(_log, logging.INFO, 'not deleted', segment_id=1)",
        "event(_log, logging.INFO, 'deleted', segment=1)",
        "event(_log, logging.INFO, 'deleted', **fields)",
        "log = logging.getLogger(__name__)",
        "_log = logging.getLogger('node')",
        "def f():\n    _log = logging.getLogger(__name__)",
    ],
)
def test_rules_bite(text: str) -> None:
    module = parse(FILE, text)
    assert [*by_hand(module), *loggers(module)]


@pytest.mark.parametrize(
    "text",
    [
        "event(_log, logging.INFO, 'deleted', segment_id=1, error=error)",
        "_log = logging.getLogger(__name__)",
        "backlog.info()\nself._segment_log.log",
        "math.log(3)",
    ],
)
def test_rules_allow(text: str) -> None:
    module = parse(FILE, text)
    assert not [*by_hand(module), *loggers(module)]
