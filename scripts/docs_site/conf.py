"""Settings of Sphinx. Nothing in the pages asks another host, and no time is written into them."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / each) for each in ("replication", "node", "coordinator"))]
os.environ.setdefault("SOURCE_DATE_EPOCH", "0")

import icecore  # noqa: E402

project = "icecore"
version = release = icecore.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["files"]

nitpicky = True
# Names of Python and of other libraries have no page here; nor has what users don't give: ports,
# and the batch that a handle belongs to.
nitpick_ignore_regex = [
    ("py:.*", r"(?!icecore\b).*"),
    ("py:class", r"icecore\.rpc\.ports\.(Net|Clock|Rng)"),
    ("py:class", r"icecore\.client\.produce\.batches\.Batch"),
]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

autodoc_mock_imports = [
    each for each in ("pyspark", "testcontainers") if importlib.util.find_spec(each) is None
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

highlight_language = "none"
html_theme = "furo"
html_title = f"icecore {version}"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["tables.css"]
