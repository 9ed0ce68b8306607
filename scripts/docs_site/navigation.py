"""The place of each document in the site: sections by task, and pages by the path of a document.

A document that is in no section, or in two, fails the build.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from scripts.docs_site import protocol, python

HOME = "README.md"


@dataclass(frozen=True)
class Section:
    """A heading of the navigation with its documents, as paths from the root of the checkout."""

    title: str
    documents: tuple[str, ...]


DECISIONS = "docs/adr/index.md"
WRITTEN = (protocol.INDEX, python.INDEX, DECISIONS)
"""Pages that the build writes: no documents of the tree."""


def _operate(*names: str) -> tuple[str, ...]:
    return tuple(f"docs/operate/{name}.md" for name in names)


def _reference(*names: str) -> tuple[str, ...]:
    return tuple(f"docs/reference/{name}.md" for name in names)


def _design(*names: str) -> tuple[str, ...]:
    return tuple(f"docs/design/{name}.md" for name in names)


SECTIONS = (
    Section(
        "Use",
        (
            *("docs/start.md", "docs/produce.md", "docs/consume.md", "docs/find.md"),
            *("docs/topics.md", "docs/spark.md", "docs/spark-jobs.md", "docs/tiering.md"),
            "docs/troubleshoot.md",
        ),
    ),
    Section(
        "Operate",
        (
            *_operate("deploy", "kubernetes", "etcd", "monitor", "backup", "repair", "upgrade"),
            "docs/performance.md",
        ),
    ),
    Section(
        "Reference",
        (
            python.INDEX,
            *_reference("commands", "commands-contract", "settings", "errors", "metrics", "limits"),
            *(protocol.INDEX, "examples/go/README.md"),
            *_reference("formats", "glossary"),
            "CHANGELOG.md",
        ),
    ),
    Section(
        "Design",
        (
            *_design("architecture", "protocol", "evidence", "indexes", "tiering", "testing"),
            *("tests/simulation/README.md", "tests/model/README.md", "tests/chaos/README.md"),
            DECISIONS,
            "CONTRIBUTING.md",
        ),
    ),
)

FOLDERS = {
    "docs/adr": DECISIONS,
    "proto/icecore/v1": protocol.INDEX,
    "examples/go": "examples/go/README.md",
}
"""Folders that documents link to, with the page for them."""


def page_of(document: str) -> str:
    """The page of a document, as a path from the root of the site."""
    path = PurePosixPath(document)
    if document == HOME:
        return "index.md"
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if path.name == "README.md":
        return f"{path.parent.as_posix()}.md"
    return path.name.lower()


def check(documents: Iterable[str]) -> None:
    """See that each document has one place.

    Raises:
        ValueError: Some have none, or several, or a section names what there is not.
    """
    there = {each for each in documents if not each.startswith("docs/adr/")} | set(WRITTEN)
    placed = [HOME, *(each for section in SECTIONS for each in section.documents)]
    if several := sorted({each for each in placed if placed.count(each) > 1}):
        raise ValueError(f"documents with several places in the navigation: {several}")
    if missing := sorted(set(placed) - there):
        raise ValueError(f"the navigation names documents that there are not: {missing}")
    if lost := sorted(there - set(placed)):
        raise ValueError(f"documents without a place in scripts/docs_site/navigation.py: {lost}")


def contents() -> str:
    """The navigation, as it stands at the end of the first page."""
    blocks = []
    for section in SECTIONS:
        pages = "\n".join(page_of(each).removesuffix(".md") for each in section.documents)
        blocks.append(f"```{{toctree}}\n:hidden:\n:caption: {section.title}\n\n{pages}\n```\n")
    return "\n".join(blocks)


def decisions(documents: Iterable[str]) -> str:
    """The page that lists the decisions."""
    pages = sorted(PurePosixPath(each).stem for each in documents if each.startswith("docs/adr/"))
    listed = "\n".join(pages)
    about = "Choices that bind later work: context, decision, consequences."
    return f"# Decisions\n\n{about}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
