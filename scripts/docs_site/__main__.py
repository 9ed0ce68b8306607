"""Build the site: ``python -m scripts.docs_site [FOLDER]``, which is build/site otherwise.

A link or an anchor that leads nowhere ends it, and so does a document without a place in the
navigation, or a type in a public signature that no page describes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from scripts.docs_site import navigation, protocol, python
from scripts.docs_site.links import FILES, BrokenLinkError, led

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/go/README.md")


def documents(root: Path) -> tuple[str, ...]:
    """The documents of the tree, as paths from its root."""
    found = [*(root / "docs").rglob("*.md"), *(root / "tests").glob("*/README.md")]
    return (*OUTSIDE, *sorted(path.relative_to(root).as_posix() for path in found))


def assemble(root: Path, folder: Path) -> None:
    """Write the sources of all pages into a folder, which then has nothing else.

    Raises:
        ValueError: A document has no place, or several.
        BrokenLinkError: A link leads to no file.
    """
    there = documents(root)
    navigation.check(there)
    texts = {each: (root / each).read_text() for each in there}
    texts[navigation.HOME] += "\n" + navigation.contents()
    texts[navigation.DECISIONS] = navigation.decisions(there)
    shutil.rmtree(folder, ignore_errors=True)
    written = {**protocol.written(root), **python.written()}
    wanted: set[str] = set()
    for document, text in texts.items():
        page, files = led(root, document, text)
        written[document] = page
        wanted |= files
    for document, text in written.items():
        path = folder / navigation.page_of(document)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in wanted:
        path = folder / FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, path)


def render(source: Path, out: Path) -> int:
    """Turn sources of pages into the site. Returns the exit code of Sphinx."""
    shutil.rmtree(out, ignore_errors=True)
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env"]
    folders = ["--conf-dir", str(Path(__file__).parent)]
    folders += ["--doctree-dir", str(source.with_name("doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, *folders, str(source), str(out)]
    status = subprocess.run(command, cwd=ROOT).returncode
    (out / ".buildinfo").unlink(missing_ok=True)
    return status


def main(out: Path) -> int:
    """Build the site. Returns the exit code."""
    source = out.with_name(f"{out.name}-work") / "source"
    try:
        assemble(ROOT, source)
    except (ValueError, BrokenLinkError) as error:
        print(f"the site cannot be built: {error}", file=sys.stderr)
        return 1
    return render(source, out)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site"))
