# packaging/examples/first-steps.ipynb runs as it stands, and shows the output that it has today.
import contextlib
import io
import json
import tempfile

import pytest
from conftest import HERE

NOTEBOOK = HERE.parents[1] / "packaging/examples/first-steps.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The output of each cell, in the order of the notebook."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outputs, names = [], {}
    for cell in CELLS:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
        outputs.append(told.getvalue())
    return outputs


def test_each_cell_prints_what_the_notebook_shows(ran):
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in CELLS]
    assert len(shown) > 5
    assert ran == shown
