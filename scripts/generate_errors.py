"""Write `docs/reference/errors.md` from `icecore/errors.py`, or check that it is fresh.

The keys of the metadata are found where errors are made: keyword arguments of their constructors
in production code.
"""

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path

from icecore import errors
from icecore.errors import IcecoreError
from icecore.rpc.statuses import status_of

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/reference/errors.md"
FOLDERS = ("icecore", "replication", "node", "coordinator")
HEAD = """\
# Errors

Written by `make contract` from `icecore/errors.py`; do not edit.

A failed call has a gRPC status with a `google.rpc.ErrorInfo` among its details: domain "icecore", a
reason of this table, and metadata, which are strings and may be absent. Answers about many
partitions carry the same reasons in an `Error` for each partition. A status without `ErrorInfo` was
made by gRPC itself: take UNAVAILABLE and CANCELLED as UNAVAILABLE, DEADLINE_EXCEEDED as TIMEOUT. An
unknown reason is to be taken as INTERNAL. Generated code has them as names of the enum `Reason`,
with the prefix `REASON_`.

- **definite**: the request has changed nothing and never will.
- **indeterminate**: a produce may be there, or may yet become visible. Sent again without a
  producer id it may be there twice; with the same producer id, epoch and sequence it is recognised.
- **again**: the same request may succeed later, after fresh metadata or a pause.

| reason | gRPC code | a produce is | again | metadata | meaning |
|---|---|---|---|---|---|
"""


def classes() -> list[type[IcecoreError]]:
    """Every error, in the order of the file."""
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, IcecoreError) and each is not IcecoreError
    ]


def metadata_keys() -> dict[str, set[str]]:
    """Name of a class → keywords with which it is made."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                found[name].update(each.arg for each in call.keywords if each.arg)
    return found


def document() -> str:
    """All of docs/reference/errors.md."""
    keys, lines = metadata_keys(), []
    for each in classes():
        code = status_of(each())[0].name
        outcome = "indeterminate" if each.indeterminate else "definite"
        again = "yes" if each.retriable else "no"
        names = ", ".join(sorted(keys[each.__name__])) or "–"
        meaning = " ".join((each.__doc__ or "").split()).replace("``", "`").replace("|", "\\|")
        lines.append(f"| {each.reason} | {code} | {outcome} | {again} | {names} | {meaning} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    """Bring the file up to date, or with --check exit 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    fresh = document()
    if parser.parse_args().check:
        if not TARGET.exists() or TARGET.read_text() != fresh:
            sys.exit(f"{TARGET.name} is stale, run `make contract`")
        return
    TARGET.write_text(fresh)


if __name__ == "__main__":
    main()
