"""Links of documents, led to pages of the site: a document's page lies elsewhere than its file.

A link to another file of the checkout becomes a download. A link that leads nowhere fails the
build. Anchors are Sphinx's business.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from scripts.docs_site.navigation import FOLDERS, WRITTEN, page_of

FILES = "files"
"""The folder of the pages' tree with files that are no documents."""
_LINK = re.compile(r"(?<=\]\()[^()\s]+(?=\))")
_FENCE = re.compile(r"^(```|~~~)")


class BrokenLinkError(Exception):
    """A link leads to nothing in the checkout."""


def led(root: Path, document: str, text: str) -> tuple[str, set[str]]:
    """Return the text with its links led to pages, and the files that it links to.

    Raises:
        BrokenLinkError: A link leads nowhere, or to a folder that has no page.
    """
    wanted: set[str] = set()
    lines = []
    for is_code, line in _lines(text):
        if not is_code:
            line = _LINK.sub(lambda match: _target(root, document, match[0], wanted), line)
        lines.append(line)
    return "".join(lines), wanted


def _lines(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it belongs to a block of code, line)."""
    is_code = False
    for line in text.splitlines(keepends=True):
        is_fence = _FENCE.match(line.lstrip()) is not None
        yield is_code or is_fence, line
        is_code ^= is_fence


def _target(root: Path, document: str, target: str, wanted: set[str]) -> str:
    name, hash_, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), name))
    path = FOLDERS.get(path, path)
    where = f"{document} links to {target}"
    if path in WRITTEN or (path.endswith(".md") and (root / path).exists()):
        page = page_of(path)
    elif (root / path).is_file() and not path.startswith(".."):
        page = f"{FILES}/{path}"
        wanted.add(path)
    elif (root / path).is_dir():
        raise BrokenLinkError(f"{where}: name a page for this folder in the navigation's FOLDERS")
    else:
        raise BrokenLinkError(f"{where}: there is no {path}")
    start = PurePosixPath(page_of(document)).parent.as_posix()
    return f"{posixpath.relpath(page, start)}{hash_}{anchor}"
