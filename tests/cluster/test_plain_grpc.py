"""The contract alone is enough: stubs made from proto/, without our package, do the job."""

import subprocess
import sys
from pathlib import Path

from grpc_tools import protoc

from icecore.dev import LocalCluster

ROOT = Path(__file__).parents[2]


def generate_stubs(folder: Path) -> None:
    """Stubs of proto/ in a package that hides ours."""
    for package in (folder / "icecore", folder / "icecore" / "v1"):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    protos = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}"]
    assert protoc.main([*arguments, f"--grpc_python_out={folder}", *protos]) == 0


def test_generated_stubs_alone_produce_and_fetch(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    generated = tmp_path / "generated"
    generate_stubs(generated)
    script = generated / "client.py"
    script.write_text((Path(__file__).parent / "plain_grpc_client.py").read_text())

    done = subprocess.run(
        [sys.executable, str(script), shared_cluster.bootstrap, "plain"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{number} k{number} value {number} {'even' if number % 2 == 0 else 'odd'}"
        for number in range(1, 5)
    ]
