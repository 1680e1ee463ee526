"""Runs what documents show: the tutorial, and the sessions of README.md and docs/python.md as they are printed.

python documents.py          compares with what the documents show, ends with 1 at a difference
python documents.py --write  writes the tutorial and the sessions with their outputs
"""

import doctest
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
TUTORIAL = HERE / "tutorial.ipynb"
PAGES = [HERE.parent / "README.md", HERE.parent / "docs" / "python.md"]


def outputs(notebook):
    """What each cell prints, and what it shows besides as text and as HTML."""
    def printed(cell):
        # What one cell prints may come in several parts.
        return "".join(output.get("text", "") for output in cell.outputs)

    def shown(cell):
        data = [output.get("data", {}) for output in cell.outputs]
        return [part.get("text/html", part.get("text/plain", "")) for part in data if part]

    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(printed(cell), shown(cell)) for cell in cells]


def tutorial():
    """The executed tutorial, without what differs from run to run, and what it showed before."""
    notebook = nbformat.read(TUTORIAL, as_version=4)
    before = outputs(notebook)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook, before


class Written(doctest.DocTestRunner):
    """Keeps what examples print where a page shows something else."""

    def __init__(self, **options):
        super().__init__(**options)
        self.replacements = []

    def report_failure(self, out, test, example, got):
        self.replacements.append((example.source + example.want, example.source + got))


def session(write):
    """How many examples of the pages show something else than they print. Writes what they print, if asked for."""
    kind = Written if write else doctest.DocTestRunner
    runner = kind(optionflags=doctest.NORMALIZE_WHITESPACE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ">>>" in block]
        assert blocks, f"{page.name} has no session"
        for block in blocks:
            runner.run(doctest.DocTestParser().get_doctest(block, {}, page.name, str(page), 0))
        if write:
            for shown, printed in runner.replacements:
                text = text.replace(f">>> {shown}", f">>> {printed}")
            page.write_text(text, encoding="utf-8")
    return 0 if write else runner.failures


def main():
    notebook, before = tutorial()
    if "--write" in sys.argv:
        nbformat.write(notebook, TUTORIAL)
    elif outputs(notebook) != before:
        cells = zip(outputs(notebook), before)
        changed = [index + 1 for index, (now, then) in enumerate(cells) if now != then]
        sys.exit(f"{TUTORIAL}: code cells {changed} show something else: run python documents.py --write")
    sys.exit(session("--write" in sys.argv))


if __name__ == "__main__":
    main()
