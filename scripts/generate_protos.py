"""Generate `icecore/v1` from `proto/icecore/v1`, or check that what is committed is fresh.

The folder of a .proto file mirrors the import path of its generated module, so the generator's
absolute imports are right as they are. The output is committed: users of the source tree need no
protoc.

protoc's output refuses every runtime that is older than protoc. What it does works with much older
ones as long as the files stay proto3, so these checks are taken out; the lower bounds in
pyproject.toml say which versions are accepted, and tests/cluster/test_oldest.py runs them.
"""

import argparse
import re
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

OF_NEW_RUNTIMES = (
    # protobuf: "the runtime must not be older than this protoc".
    r"from google\.protobuf import runtime_version as _runtime_version\n",
    r"_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)+?\)\n",
    # gRPC: the same, and names of methods that are registered early, which older ones don't know.
    r"^import warnings\n",
    r"\nGRPC_GENERATED_VERSION = (?:.*\n)+?    \)\n",
    r" *server\.add_registered_method_handlers\(.*\)\n",
    r",\s*_registered_method=True",
)
"""Parts of the generated code that only refuse, or that only the newest runtimes have."""


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
    for path in (output_root / PACKAGE).glob("*_pb2*.py"):
        path.write_text(without_version_checks(path.read_text()))
    (output_root / PACKAGE / "__init__.py").write_text(PACKAGE_DOCSTRING)


def without_version_checks(text: str) -> str:
    """Return generated code as older runtimes take it, too."""
    for part in OF_NEW_RUNTIMES:
        text = re.sub(part, "", text, flags=re.MULTILINE)
    return text


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
