"""A node without an object store needs none of the libraries behind it."""

import subprocess
import sys

CODE = """
import sys
for name in ("pyarrow", "obstore", "deltalake"):
    sys.modules[name] = None
import icecore_node.node
import icecore_node.ports
"""


def test_a_node_is_imported_without_them() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
