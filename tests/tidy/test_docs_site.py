"""The sources of the site, without Sphinx: each document has its place, and each link a page."""

from pathlib import Path

import pytest

from scripts.docs_site import navigation, protocol
from scripts.docs_site.__main__ import assemble, documents
from scripts.docs_site.links import BrokenLinkError, led
from tests.tidy.tree import ROOT

PROTO = """\
// Above.
message One {
  int32 a = 1;
  // Above it.
  int32 b = 2;
  int32 c = 3;  // behind, and
                // in the next line
  int32 d = 4;
}
""".splitlines()


def test_pages_of_all_documents_are_written(tmp_path: Path) -> None:
    assemble(ROOT, tmp_path / "source")
    pages = {path.relative_to(tmp_path / "source").as_posix() for path in tmp_path.rglob("*.md")}
    assert {navigation.page_of(each) for each in documents(ROOT)} < pages
    assert (tmp_path / "source" / "files" / "helm" / "icecore" / "values.yaml").is_file()
    fields = (tmp_path / "source" / "reference" / "protocol" / "data.md").read_text()
    assert "| 3 | `timeout_ms` | uint32 | how long to wait for replicas" in fields


def test_a_document_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="new"):
        navigation.check([*documents(ROOT), "docs/new.md"])
    with pytest.raises(ValueError, match=r"docs/start\.md"):
        navigation.check([each for each in documents(ROOT) if each != "docs/start.md"])


@pytest.mark.parametrize(
    ("link", "led_to"),
    [
        ("../start.md#first-records", "../start.md#first-records"),
        ("../../README.md", "../index.md"),
        ("../../tests/chaos/README.md", "../tests/chaos.md"),
        ("../../benchmarks/run.py", "../files/benchmarks/run.py"),
        ("../../proto/icecore/v1", "../reference/protocol/index.md"),
        ("https://example.org/x", "https://example.org/x"),
        ("#here", "#here"),
    ],
)
def test_links_lead_to_pages(link: str, led_to: str) -> None:
    text, _ = led(ROOT, "docs/design/testing.md", f"see [this\nthing]({link})\n")
    assert text == f"see [this\nthing]({led_to})\n"


@pytest.mark.parametrize("link", ["nothing.md", "../../benchmarks", "../../../x.md"])
def test_a_link_that_leads_nowhere_is_refused(link: str) -> None:
    with pytest.raises(BrokenLinkError, match=link):
        led(ROOT, "docs/design/testing.md", f"[x]({link})")


def test_links_in_code_are_left_alone() -> None:
    code = "```\n[x](nothing.md)\n```\n"
    assert led(ROOT, "README.md", code) == (code, set())


def test_a_comment_goes_on_below_its_field() -> None:
    spans = {
        "One": (1, 0, 8, 1),
        "a": (2, 2, 14),
        "b": (4, 2, 14),
        "c": (5, 2, 14),
        "d": (7, 2, 14),
    }
    assert {name: protocol.comment(PROTO, span) for name, span in spans.items()} == {
        "a": "",
        "b": "Above it.",
        "c": "behind, and\nin the next line",
        "d": "",
        "One": "Above.",
    }
