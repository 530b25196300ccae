"""A learner's notebook as the programs that learners save it with write it.

None of these programs runs here: each writer follows what its program documents or what published files of it show.
JupyterLab and the classic Notebook: nbformat's own documentation. VS Code: its extension's `serializers.ts`. Colab and
Kaggle: notebooks that they saved, as published on GitHub. ModelScope: the notebooks in modelscope/modelscope's own
examples, saved in its JupyterLab (`ExecutionIndicator`); no file of today's ModelScope was to be had.
"""
import copy
import hashlib
import json
import uuid
from typing import NamedTuple

PYTHON = {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
          "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3"}
STARTED, ENDED = "2026-08-19T02:14:07.530613Z", "2026-08-19T02:14:07.612188Z"
RAN = {"iopub.execute_input": STARTED, "iopub.status.busy": STARTED, "iopub.status.idle": ENDED,
       "shell.execute_reply": ENDED, "shell.execute_reply.started": STARTED}
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


class Layout(NamedTuple):
    """How a program puts a notebook into bytes; `order` is "own", "sorted" or "reversed"."""

    indent: int | None = 1
    order: str = "sorted"
    lines: bool = True  # sources as lists of lines, not as one string
    end: str = "\n"  # behind the last brace
    newline: str = "\n"
    bom: bool = False
    ascii: bool = False


def worked(notebook):
    """The notebook (dict) after its learner ran it: counts, a printed line, an error, a picture with its widget."""
    notebook = copy.deepcopy(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        tests = cell["metadata"].get("nbgrader", {}).get("grade")
        outputs = [{"output_type": "stream", "name": "stdout", "text": ["[T1] ok\n", "[T1] 好\n"]}] if tests else []
        cell.update(execution_count=number, outputs=outputs)
    code[-2]["outputs"].append({"output_type": "error", "ename": "NotImplementedError", "evalue": "TODO 1",
                                "traceback": ["\u001b[31mNotImplementedError\u001b[39m: TODO 1"]})
    code[-1]["outputs"].append({"output_type": "display_data", "metadata": {}, "data": {
        "image/png": "iVBORw0KGgo=\n", "text/plain": ["panel"],
        VIEW: {"model_id": "0a4ded634ba3459fb43972816b3b6498", "version_major": 2, "version_minor": 0}}})
    return notebook


def as_bytes(notebook, layout):
    """The file of a notebook (dict) in a layout."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        cell["source"] = text.splitlines(keepends=True) if layout.lines else text
    if layout.order == "reversed":
        notebook = _reversed(notebook)
    text = json.dumps(notebook, indent=layout.indent, sort_keys=layout.order == "sorted", ensure_ascii=layout.ascii)
    text = (text + layout.end).replace("\n", layout.newline)
    return ("\ufeff" if layout.bom else "").encode() + text.encode()


def jupyterlab(notebook):
    """JupyterLab 4 with the timing of cells recorded, and widget state saved."""
    def metadata(cell):
        return {"editable": True, "slideshow": {"slide_type": ""}, "tags": [], **_timing(cell)}
    return _rewritten(notebook, metadata, minor=5, ids=lambda cell: cell["id"], top={
        "kernelspec": _kernel("Python 3 (ipykernel)"), "language_info": PYTHON | {"version": "3.13.5"},
        "widgets": {STATE: {"state": {}, "version_major": 2, "version_minor": 0}},
    })


def classic(notebook):
    """Jupyter Notebook 6 with nbgrader's toolbar and the table of contents: format 4.4 knows no cell ids."""
    def metadata(cell):
        return {"scrolled": True, "collapsed": True, "hide_input": False, "ExecuteTime": {
            "start_time": STARTED, "end_time": ENDED}} if cell["cell_type"] == "code" else {"heading_collapsed": True}
    return _rewritten(notebook, metadata, minor=4, ids=None, top={
        "celltoolbar": "Create Assignment", "kernelspec": _kernel("Python 3 (ipykernel)"),
        "language_info": PYTHON | {"version": "3.9.7"}, "toc": {"base_numbering": 1, "toc_cell": False},
        "varInspector": {"window_display": False},
    })


def vscode(notebook):
    """VS Code: ids stay; a cell whose language it guessed carries that."""
    def metadata(cell):
        return {"vscode": {"languageId": "python" if cell["cell_type"] == "code" else "markdown"}}
    return _rewritten(notebook, metadata, minor=5, ids=lambda cell: cell["id"], top={
        "kernelspec": _kernel(".venv (3.12.1)"), "language_info": PYTHON | {"version": "3.12.1"},
        "polyglot_notebook": {"kernelInfo": {"defaultKernelName": "csharp", "items": []}},
    })


def vscode_older(notebook):
    """VS Code of 2022: format 4.2, no ids, no kernel chosen."""
    return _rewritten(notebook, lambda cell: {}, minor=2, ids=None, top={
        "language_info": {"name": "python", "version": "3.9.7"}, "orig_nbformat": 4,
        "vscode": {"interpreter": {"hash": "31f2aee4e71d21fbe5cf8b01ff0e069b9275f58929596ceb00d14d90e3e16cd6"}},
    })


def colab(notebook):
    """Google Colab: format 4.0, cell ids go into the metadata, and who ran what when."""
    def metadata(cell):
        kept = {"id": _hash(cell["id"])[:12]}
        if cell["cell_type"] == "code":
            kept |= {"colab": {"base_uri": "https://localhost:8080/", "height": 81},
                     "outputId": str(uuid.uuid5(uuid.NAMESPACE_URL, cell["id"])),
                     "executionInfo": {"status": "ok", "timestamp": 1787105647612, "user_tz": -480, "elapsed": 12,
                                       "user": {"displayName": "李雷", "userId": "06366185027922693499"}}}
        return kept
    return _rewritten(notebook, metadata, minor=0, ids=None, keys=("cell_type", "source", "metadata"), top={
        "colab": {"provenance": [], "toc_visible": True, "gpuType": "T4", "name": "Copy of homework.ipynb"},
        "kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"},
        "accelerator": "GPU", "widgets": {STATE: {"0a4ded634ba3459fb43972816b3b6498": {
            "model_module": "@jupyter-widgets/controls", "model_name": "VBoxModel", "state": {"children": []}}}},
    })


def kaggle(notebook):
    """Kaggle's editor, downloaded: everything on one line, sources as strings, the ids of cells dropped."""
    def metadata(cell):
        return {"_uuid": _hash(cell["id"]), "_cell_guid": str(uuid.uuid5(uuid.NAMESPACE_URL, cell["id"])),
                "trusted": True, **_timing(cell)}
    return _rewritten(notebook, metadata, minor=4, ids=None, keys=("cell_type", "source", "metadata"), top=_KAGGLE)


def kaggle_version(notebook):
    """A version that Kaggle ran and kept: papermill's notes in each cell, new ids."""
    def metadata(cell):
        return {"papermill": {"duration": 0.0816, "start_time": STARTED[:-1], "end_time": ENDED[:-1],
                              "exception": False, "status": "completed"}, "tags": [], **_timing(cell)}
    run = {"default_parameters": {}, "duration": 9.35, "environment_variables": {}, "exception": None,
           "input_path": "__notebook__.ipynb", "output_path": "__notebook__.ipynb", "parameters": {},
           "start_time": STARTED[:-1], "end_time": ENDED[:-1], "version": "2.6.0"}
    return _rewritten(notebook, metadata, minor=5, ids=lambda cell: _hash(cell["id"])[:8],
                      top=_KAGGLE | {"papermill": run})


def modelscope(notebook):
    """ModelScope, as its published examples look: JupyterLab 3 on Python 3.10 with an indicator in each code cell."""
    def metadata(cell):
        shown = {"ExecutionIndicator": {"show": True}} if cell["cell_type"] == "code" else {}
        return {**shown, "tags": [], **_timing(cell)}
    return _rewritten(notebook, metadata, minor=5, ids=lambda cell: str(uuid.uuid5(uuid.NAMESPACE_URL, cell["id"])),
                      top={"kernelspec": _kernel("Python 3 (ipykernel)"),
                           "language_info": PYTHON | {"version": "3.10.13"}})


_KAGGLE = {
    "kernelspec": {"language": "python", "display_name": "Python 3", "name": "python3"},
    "language_info": PYTHON | {"version": "3.11.13"},
    "kaggle": {"accelerator": "none", "dataSources": [{"sourceId": 9905, "sourceType": "datasetVersion"}],
               "dockerImageVersionId": 31090, "isInternetEnabled": False, "language": "python",
               "sourceType": "notebook", "isGpuEnabled": False},
}
# Each writer with the layout that its program uses.
WRITERS = {
    "JupyterLab": (jupyterlab, Layout()),
    "Notebook 6": (classic, Layout()),
    "VS Code": (vscode, Layout()),
    "VS Code on Windows": (vscode_older, Layout(newline="\r\n")),
    "Colab": (colab, Layout(indent=None, order="own", end="")),
    "Colab to GitHub": (colab, Layout(indent=2, order="own", end="")),
    "Kaggle": (kaggle, Layout(indent=None, order="own", lines=False, end="")),
    "Kaggle version": (kaggle_version, Layout()),
    "ModelScope": (modelscope, Layout()),
}


def _rewritten(notebook, metadata, *, minor, ids, top, keys=()):
    """The notebook with new notebook metadata `top`, and in each cell what `metadata(cell)` adds and ids or none.

    A program keeps metadata that it does not know, nbgrader's among it; where it has a value of its own, that is
    changed (tags are added to). `keys` come first in a cell.
    """
    cells = []
    for cell in copy.deepcopy(notebook["cells"]):
        added = metadata(cell)
        tags = [*cell["metadata"].get("tags", []), *added.get("tags", [])]
        cell["metadata"] |= added | ({"tags": tags} if tags or "tags" in added else {})
        own_id = ids and ids(cell)
        del cell["id"]
        if own_id:
            cell["id"] = own_id
        cells.append({key: cell[key] for key in (*keys, *cell)})
    if not keys:
        return {"cells": cells, "metadata": top, "nbformat": 4, "nbformat_minor": minor}
    return {"nbformat": 4, "nbformat_minor": minor, "metadata": top, "cells": cells}


def _timing(cell):
    return {"execution": RAN} if cell["cell_type"] == "code" else {}


def _kernel(name):
    return {"display_name": name, "language": "python", "name": "python3"}


def _hash(text):
    return hashlib.sha1(text.encode()).hexdigest()


def _reversed(value):
    """The same with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(one) for one in value] if isinstance(value, list) else value
