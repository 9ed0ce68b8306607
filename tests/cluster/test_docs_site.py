"""The site builds without a warning, equal each time, and asks no other host for anything."""

import filecmp
import re
from pathlib import Path

import pytest

from scripts.docs_site.__main__ import main, render

pytest.importorskip("sphinx")

ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
)
IN_STYLES = re.compile(r"""(?:@import\s*|url\()["']?(?:https?:)?//""")


@pytest.mark.every(50, turn=48)
@pytest.mark.timeout(600)
def test_two_builds_are_equal_and_need_no_network(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(first) == main(second) == 0
    pages = sorted(path.relative_to(first).as_posix() for path in first.rglob("*.html"))
    assert {"index.html", "start.html", "reference/settings.html", "adr/index.html"} < {*pages}
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    assert all(filecmp.cmp(first / name, second / name, shallow=False) for name in names)
    asked = [page for page in pages if ELSEWHERE.search((first / page).read_text())]
    asked += [str(path) for path in first.rglob("*.css") if IN_STYLES.search(path.read_text())]
    assert not asked
    classes = (first / "reference" / "python" / "asyncio.html").read_text()
    assert 'id="icecore.Producer.send"' in classes and "None is a tombstone" in classes


@pytest.mark.every(50, turn=48)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("link", ["b.md#nothing", "#nothing", "c.md"])
def test_a_link_that_leads_nowhere_fails_the_build(link: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "b.md").write_text("# B\n")
    (source / "index.md").write_text("# A\n\n[b](b.md#b)\n\n```{toctree}\n\nb\n```\n")
    assert render(source, tmp_path / "out") == 0
    (source / "index.md").write_text(f"# A\n\n[x]({link})\n\n```{{toctree}}\n\nb\n```\n")
    assert render(source, tmp_path / "out") != 0
