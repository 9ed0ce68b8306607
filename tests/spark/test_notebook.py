"""The notebook in examples runs from its first cell to its last: by nbclient where that is
installed, else its cells one after the other."""

import json
import os
from importlib.util import find_spec

import pytest
from pyspark.sql import SparkSession

from tests.tidy.tree import ROOT

NOTEBOOK = ROOT / "examples" / "flights.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib: the extra demo")
def test_the_notebook_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])
    notebook = json.loads(NOTEBOOK.read_text())
    try:
        import nbclient
        import nbformat
    except ModuleNotFoundError:
        monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests have it, too
        monkeypatch.syspath_prepend(str(ROOT))
        names: dict[str, object] = {"__name__": "__main__"}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        assert names["problems"] == []
        shown = capsys.readouterr().out
    else:
        ran = nbclient.NotebookClient(nbformat.from_dict(notebook), timeout=300).execute()
        shown = json.dumps(ran)
    assert "336,776 flights" in shown
    assert "111 departures of N14228" in shown
