"""Build what a release has: wheel, source archive, Helm chart, SBOM, and a file with their digests.

    python scripts/build_release.py [FOLDER]

Two builds of one commit are equal, byte for byte: times in archives are that of the commit, or what
``SOURCE_DATE_EPOCH`` says. ``helm package`` would write the time of the build, so the chart is
packed here; its form is that of `helm package`.
"""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "icecore"
LOCK = ROOT / "docker" / "requirements.lock"
SUMS = "SHA256SUMS"
OLDEST_S = 315_532_800
"""1980-01-01: a wheel is a ZIP archive, which knows no earlier time."""


def build(folder: Path) -> list[Path]:
    """Build all files of a release into the folder, which keeps nothing else that begins alike.

    Returns their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("icecore-*"), folder / SUMS):
        old.unlink(missing_ok=True)
    seconds = source_date_s()
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    if CHART.is_dir():
        pack_chart(CHART, folder, seconds)
    if LOCK.is_file():
        list_libraries(LOCK, folder, environment)
    built = sorted(folder.glob("icecore-*"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built]
    (folder / SUMS).write_text("".join(lines))
    return [*built, folder / SUMS]


def source_date_s() -> int:
    """The time that archives have, in Unix seconds."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return max(int(said), OLDEST_S)
    command = ["git", "log", "-1", "--format=%ct"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return int(asked.stdout) if asked.returncode == 0 else OLDEST_S


def pack_chart(chart: Path, folder: Path, seconds: int) -> Path:
    """Pack a chart as ``NAME-VERSION.tgz``. Returns its path."""
    about = dict(
        line.split(": ", 1)
        for line in (chart / "Chart.yaml").read_text().splitlines()
        if line.startswith(("name: ", "version: "))
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(each for each in chart.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(f"{about['name']}/{path.relative_to(chart).as_posix()}")
            content = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), seconds, 0o644
            archive.addfile(entry, io.BytesIO(content))
    target = folder / f"{about['name']}-{about['version']}.tgz"
    with target.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as file:
        file.write(packed.getvalue())
    return target


def list_libraries(lock: Path, folder: Path, environment: dict[str, str]) -> Path:
    """Write the SBOM of the image: each locked library with its digests, as CycloneDX.

    Returns its path.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    target = folder / f"{project['name']}-{project['version']}.cdx.json"
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements"]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    command += [*options, "--output-file", str(target), str(lock)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return target


if __name__ == "__main__":
    for each in build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist"):
        print(each)
