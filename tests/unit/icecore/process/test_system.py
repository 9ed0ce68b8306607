"""The limit of open files: raised to what is allowed, refused when that is too little."""

import subprocess
import sys


def limited(soft: int, hard: int, least: int) -> str:
    """What ``raise_descriptor_limit`` does in a process with these limits."""
    code = (
        "import resource, sys\n"
        "from icecore.errors import ConfigurationError\n"
        "from icecore.process.system import raise_descriptor_limit\n"
        "soft, hard, least = map(int, sys.argv[1:])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "try: print(raise_descriptor_limit(least), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except ConfigurationError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, *map(str, (soft, hard, least))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def test_the_soft_limit_becomes_the_hard_one() -> None:
    assert limited(200, 1500, 1024) == "1500 1500"
    assert limited(1500, 1500, 1024) == "1500 1500"


def test_too_low_a_hard_limit_is_refused_with_advice() -> None:
    told = limited(200, 512, 1024)
    assert told.startswith("only 512 files and connections")
    assert "LimitNOFILE" in told
