"""Files of a deployment agree with the project: versions, locked libraries, names of metrics."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = ROOT / "docker" / "requirements.lock"
IMAGE_EXTRAS = ("server", "tier")
IMAGE_PYTHON = "3.13"
_PIN = re.compile(
    r"^([\w.-]+)==(\S+)( ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


def wanted(*extras: str) -> list[Requirement]:
    """Direct requirements of an install with these extras, those of extras of extras included."""
    found = [Requirement(each) for each in PROJECT["dependencies"]]
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["name"]:
                found += wanted(*requirement.extras)
            else:
                found.append(requirement)
    return found


def test_the_lock_of_the_image_pins_each_library_with_its_digests() -> None:
    text = LOCK.read_text()
    pins = {canonicalize_name(name): version for name, version, _, _ in _PIN.findall(text)}
    assert len(pins) == text.count("==") >= 20
    assert _PIN.sub("", text).strip() == ""
    for each in wanted(*IMAGE_EXTRAS):
        if each.marker is None or each.marker.evaluate({"python_version": IMAGE_PYTHON}):
            version = pins[canonicalize_name(each.name)]
            assert each.specifier.contains(version), f"{each} is locked at {version}: `make lock`"
