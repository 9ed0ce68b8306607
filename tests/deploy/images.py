"""The image that tests run, built once in a process, or the reason why they cannot."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NO_BASE = re.compile(r"pull access denied|/v2/|failed to resolve source metadata")


def docker(*arguments: str, check: bool = True) -> str:
    """Run a command of Docker. Returns what it prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + done.stderr if not check else done.stdout.strip()


def built_image() -> str:
    """Return the name of the image. Skip the test where there is no daemon, or no base image."""
    name, why = _build()
    if why:
        pytest.skip(why)
    return name


@cache
def _build() -> tuple[str, str]:
    """Name of the image, and why there is none."""
    if shutil.which("docker") is None:
        return "", "there is no docker command: install Docker"
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        return "", "no Docker daemon answers: start one, or set DOCKER_HOST"
    if given := os.environ.get("ICECORE_TEST_IMAGE"):
        return given, ""
    options = os.environ.get("BUILD_OPTIONS", "")
    command = ["make", "image", "IMAGE=icecore:test", f"BUILD_OPTIONS={options}"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = built.stdout[-4000:] + built.stderr[-4000:]
    if built.returncode and _NO_BASE.search(said):
        return "", "the base image can't be pulled: give BUILD_OPTIONS a PYTHON_IMAGE"
    assert built.returncode == 0, said
    return "icecore:test", ""
