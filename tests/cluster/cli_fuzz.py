"""``python -m tests.cluster.cli_fuzz BOOTSTRAP [--cases 500] [--seed 7]``: commands that people and
their scripts hurt. Bytes that are no text, closed streams, locales and signals: whatever happens, a
command ends with a status of its own, without a traceback, and says JSON when asked to.

The topic ``TOPIC`` must exist.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TOPIC = "cli-fuzz"
STATUSES = {0, 1, 2, 3, 4, 10, 20, 130}
END_S = 60.0
LAUNCH = "import os; from icecore.cli import main; os.write({}, b'.'); main()"
"""Says when a signal can be meant for the command: before that it is the interpreter's."""

_WORDS = (b"\xe9", b"caf\xc3\xa9", b"", b"-1", b"1e9", b"0", b"a=b", b"=", b"\xff=\xfe", b"NaN")
_WORDS += (b"9" * 40, b"%v\\n", b"%", b"latest", b"@5", b"2026-01-01", b"--", b"x" * 3_000)
_OPTIONS = {
    b"produce": (
        *(b"-f ndjson", b"-f records", b"-k", b"--key-field", b"--value-field", b"--tag-field"),
        *(b"--headers-field", b"--time-field", b"--partition", b"--same-partition", b"--offsets"),
        *(b"--from-line", b"--batch-bytes", b"--linger-ms 0", b"--compression zstd"),
    ),
    b"fetch": (
        *(b"--from", b"--until", b"-n", b"--partition", b"-f", b"--key", b"--header", b"--tag"),
        *(b"--position", b"--key-base64", b"--tag-none"),
    ),
    b"query": (
        *(b"--key", b"--tag", b"--header", b"--id", b"-n", b"--all", b"--newest-first"),
        *(b"--from-time", b"--to-offset", b"--continue", b"--key-base64"),
    ),
    b"explain query": (b"--key", b"--tag", b"--header", b"--analyze", b"--from-time"),
    b"topic describe": (),
    b"topic list": (),
}
_LINES = (
    *(
        b'{"k": 1.10, "v": null}',
        b'{"k": NaN}',
        b"{",
        b"\xff\xfe{\0",
        b"\xef\xbb\xbfa=1",
        b"a\rb\r",
    ),
    *(b"", b"plain", b"\0", b'{"key": "", "value": null, "tags": [""], "headers": [], "k": true}'),
    *(b'{"k": "\\ud800"}', b"[1]", b'{"k": {"k": [1e999]}}', b"x" * 5_000, b'{"k": "sNaN"}'),
)
_LOCALES: tuple[dict[str, str], ...] = (
    {},
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "en_US.UTF-8"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "utf-8:strict"},
    {"PYTHONIOENCODING": "latin-1"},
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)


@dataclass
class Case:
    """One command, and what happens to it."""

    words: list[bytes]
    stdin: bytes = b""
    closed: tuple[int, ...] = ()
    """Descriptors that it starts without."""
    locale: dict[str, str] = field(default_factory=dict)
    sent: signal.Signals | None = None
    """SIGPIPE: the reader of its output goes away."""
    after_s: float = 0.0

    @property
    def is_json(self) -> bool:
        """Return whether errors are JSON."""
        return b"--json" in self.words


def case_of(seed: int, folder: Path) -> Case:
    """The case of a seed; its files lie in a folder."""
    rng = random.Random(seed)
    command = rng.choice(list(_OPTIONS))
    words = [b"--json"] * (rng.random() < 0.4) + command.split()
    if command != b"topic list":
        words.append(rng.choice((TOPIC.encode(),) * 6 + (b"nothing-here", b"\xe9")))
    for option in rng.sample(_OPTIONS[command], min(len(_OPTIONS[command]), rng.choice((0, 1, 2)))):
        words += option.split()
        if b" " not in option and rng.random() < 0.9:
            words.append(rng.choice(_WORDS))
    stdin = b"\n".join(rng.choices(_LINES, k=rng.randrange(6)))
    if command == b"produce" and rng.random() < 0.4:
        words += [_file(rng, folder) for _ in range(rng.randrange(1, 4))]
    chosen = rng.choice(_SIGNALS) if rng.random() < 0.4 else None
    if chosen and command == b"fetch" and rng.random() < 0.5:
        words.append(b"--follow")
    return Case(
        words,
        stdin,
        rng.choice(((), (), (), (0,), (1,), (2,), (0, 1, 2))),
        rng.choice(_LOCALES),
        chosen,
        rng.random() * 1.5,
    )


def _file(rng: random.Random, folder: Path) -> bytes:
    path = os.fsencode(folder) + b"/" + rng.choice((b"a.log", b"caf\xe9.log", b"absent", b"old.d"))
    if path.endswith(b".d"):
        os.makedirs(path, exist_ok=True)
    elif path.endswith(b".log"):
        with open(path, "wb") as file:
            file.write(b"\n".join(rng.choices(_LINES, k=4)))
    return path


def problems(case: Case, bootstrap: str) -> list[str]:
    """Run a command; what is wrong with how it ended."""
    ready, said = os.pipe()
    closing = " ".join(f"{number}>&-" if number else "<&-" for number in case.closed)
    launch = [sys.executable, "-c", LAUNCH.format(said), "-b", bootstrap]
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *launch, *case.words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **case.locale},
        pass_fds=[said],
    )
    os.close(said)
    try:
        if case.sent is not None:
            os.read(ready, 1)
            time.sleep(case.after_s)
            if case.sent is signal.SIGPIPE:
                assert process.stdout is not None
                process.stdout.close()
                process.stdout = None
            else:
                process.send_signal(case.sent)
        if b"--follow" in case.words and case.sent is signal.SIGPIPE:
            process.send_signal(signal.SIGTERM)  # nothing new comes that it would notice it by
        out, err = process.communicate(case.stdin, timeout=END_S)
    except subprocess.TimeoutExpired:
        return [f"it runs after {END_S:g} s"]
    finally:
        os.close(ready)
        process.kill()
        process.wait()
    return _wrong_end(case, process.returncode, out or b"", err)


def _wrong_end(case: Case, status: int, out: bytes, err: bytes) -> list[str]:
    found = []
    if b"Traceback" in err or b"Exception ignored" in err:
        found.append(err.decode(errors="replace"))
    allowed = STATUSES if case.sent is None else STATUSES | {-case.sent, -signal.SIGTERM}
    if status not in allowed:
        found.append(f"status {status}: {err.decode(errors='replace')}")
    if case.sent is not None:
        return found
    if case.is_json and status in (1, 2, 3) and 2 not in case.closed:
        last = err.decode().splitlines()[-1:]
        if not last or "error" not in _json(last[0]):
            found.append(f"status {status} without JSON: {err!r}")
    is_document = case.is_json and b"topic" in case.words and status == 0 and 1 not in case.closed
    if is_document and "schema" not in _json(out.decode()):
        found.append(f"no JSON: {out!r}")
    return found


def _json(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.cli_fuzz", description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    given = parser.parse_args(arguments)
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.cases):
            case = case_of(seed, Path(folder))
            for problem in problems(case, given.bootstrap):
                count += 1
                print(f"seed {seed}: {case}\n  {problem}", flush=True)
    print(f"{given.cases} commands, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
