"""Generate `icecore/v1` from `proto/icecore/v1`, or check that what is committed is fresh.

The folder of a .proto file mirrors the import path of its generated module, so the generator's
absolute imports are right as they are. The output is committed: users of the source tree need no
protoc.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"
PACKAGE = Path("icecore/v1")
PLUGINS = ("mypy", "mypy_grpc")
WITH_STUBS = ("admin", "data")
"""Services that programs of others call. Our own processes talk through ports, without stubs."""
PACKAGE_DOCSTRING = (
    '"""Generated from proto/icecore/v1 by `make proto`; do not edit anything in this folder."""\n'
)


def generate(output_root: Path) -> None:
    """Write the package below `output_root`; raise CalledProcessError if protoc refuses."""
    protos = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    if not protos:
        sys.exit(f"no .proto file in {PROTO_ROOT / PACKAGE}")
    run_protoc(protos, [f"--python_out={output_root}", f"--mypy_out=quiet:{output_root}"])
    run_protoc(
        [each for each in protos if each.stem in WITH_STUBS],
        [f"--grpc_python_out={output_root}", f"--mypy_grpc_out=quiet:{output_root}"],
    )
    (output_root / PACKAGE / "__init__.py").write_text(PACKAGE_DOCSTRING)


def run_protoc(protos: list[Path], outputs: list[str]) -> None:
    """Generate from these files; raise CalledProcessError if protoc refuses."""
    # The mypy plugins are scripts beside this interpreter, which need not be on PATH.
    scripts = Path(sys.executable).parent
    plugins = [f"--plugin=protoc-gen-{each}={scripts / f'protoc-gen-{each}'}" for each in PLUGINS]
    names = [str(proto.relative_to(PROTO_ROOT)) for proto in protos]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO_ROOT}"]
    subprocess.run([*command, *plugins, *outputs, *names], check=True, cwd=PROTO_ROOT)


def contents(folder: Path) -> dict[str, bytes]:
    """Return name → bytes of the files in a generated package (caches left out)."""
    return {path.name: path.read_bytes() for path in folder.glob("*.py*") if path.is_file()}


def stale_names(fresh: dict[str, bytes], committed: dict[str, bytes]) -> list[str]:
    """Return the names that are missing, left over or different in `committed`."""
    names = sorted(fresh.keys() | committed.keys())
    return [name for name in names if fresh.get(name) != committed.get(name)]


def main() -> None:
    """Bring `icecore/v1` up to date, or with --check exit 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    only_check = parser.parse_args().check
    target = ROOT / PACKAGE
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = contents(Path(folder) / PACKAGE)
    stale = stale_names(fresh, contents(target))
    if only_check:
        if stale:
            sys.exit(f"generated code is stale, run `make proto`: {', '.join(stale)}")
        return
    target.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in fresh:
            (target / name).write_bytes(fresh[name])
        else:
            (target / name).unlink()
    print(f"{PACKAGE}: {len(fresh)} files, {len(stale)} changed")


if __name__ == "__main__":
    main()
