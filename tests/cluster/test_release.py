"""Two builds of one commit are the same files, wherever and by whomever they are made."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = "1700000000"


def build(folder: Path, umask: int) -> dict[str, str]:
    """Build a release. Returns the digest of each of its files."""
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_release.py"), str(folder)],
        env={**os.environ, "SOURCE_DATE_EPOCH": SECONDS},
        umask=umask,
        check=True,
        capture_output=True,
    )
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_two_builds_are_equal_byte_for_byte(tmp_path: Path) -> None:
    first, second = build(tmp_path / "first", 0o022), build(tmp_path / "second", 0o077)
    assert first == second
    assert {name.split("-")[0] for name in first} == {"icecore", "SHA256SUMS"}
    endings = {Path(name).suffix for name in first}
    assert {".whl", ".gz", ".tgz", ".json"} <= endings
    told = (tmp_path / "first" / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1]: line.split()[0] for line in told} == {
        name: digest for name, digest in first.items() if name != "SHA256SUMS"
    }


def test_the_bill_of_materials_names_each_locked_library_with_its_digests(tmp_path: Path) -> None:
    build(tmp_path / "release", 0o022)
    (path,) = (tmp_path / "release").glob("*.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "icecore"
    lock = (ROOT / "docker" / "requirements.lock").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.M))
    assert {each["name"]: each["version"] for each in bill["components"]} == pins
    for each in bill["components"]:
        digests = [d["content"] for r in each["externalReferences"] for d in r["hashes"]]
        assert digests and all(f"sha256:{digest}" in lock for digest in digests), each["name"]
