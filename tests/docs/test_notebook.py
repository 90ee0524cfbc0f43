"""The notebook of the examples: its cells, run one after the other, print what it shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Runs the cells of a notebook, and prints what each prints, as JSON.
RUN = """
import io, json, sys
from contextlib import redirect_stdout
space, printed = {"__name__": "__main__"}, []
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        with redirect_stdout(io.StringIO()) as out:
            exec("".join(cell["source"]), space)
        printed.append(out.getvalue())
print(json.dumps(printed))
"""


@pytest.mark.spark
@pytest.mark.thorough
def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    notebook = ROOT / "examples/quickstart.ipynb"
    command = [sys.executable, "-c", RUN, str(notebook)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]
    assert json.loads(ran.stdout.splitlines()[-1]) == shown
    assert any(shown)
