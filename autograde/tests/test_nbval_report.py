"""What a maintainer reads when a stored output is not repeated."""
import os
import subprocess
import sys

import nbformat
import pytest

STORED = "<table><tr><td>T1</td><td>6 / 6</td></tr></table>"


def stream(text):
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def code(source, *outputs, grade_id=None):
    cell = nbformat.v4.new_code_cell(source, outputs=list(outputs), execution_count=1)
    if grade_id:
        cell.metadata["nbgrader"] = {"grade_id": grade_id}
    return cell


def heading(text):
    return nbformat.v4.new_markdown_cell(text)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What pytest printed about a notebook with four planted failures, and its exit status."""
    long = "\n".join(str(number) for number in range(200))
    notebook = nbformat.v4.new_notebook(cells=[
        heading("# 07 · Tiny"),
        code("print('same')", stream("same\n")),
        heading("## Step 1 · Marks\n\n```\n# no heading\n```"),
        code("#@title [T1] check, run this cell\nprint('[T1] got 1, expected 3')\nprint('tail')",
             stream("[T1] ok\n"), stream("tail\n"), grade_id="test_double"),
        code("from IPython.display import HTML\nHTML('" + STORED.replace("6 / 6", "5 / 6") + "')",
             nbformat.v4.new_output("execute_result", {"text/plain": "<IPython.core.display.HTML object>",
                                                       "text/html": STORED}, execution_count=2)),
        heading("### Deeper"),
        code("def broken():\n    raise ValueError('no such pool')\nbroken()"),
        code("print('\\n'.join(str(-n) for n in range(200)))", stream(f"{long}\n")),
        code("print('x' * 3, end='')", stream("xxx")),
    ])
    path = tmp_path_factory.mktemp("nbval") / "en" / "07_tiny" / "07_tiny.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "autograde.nbval_report", "-p", "no:cacheprovider",
         "--rootdir", path.parent, path], cwd=path.parent, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "CI": "true"},  # where pytest would print every report twice
    )
    return run.stdout.splitlines(), run.returncode


def after(lines, first):
    """The lines below this one, up to pytest's next ruler."""
    start = lines.index(first)
    end = next(number for number in range(start, len(lines)) if lines[number].startswith(("____", "====")))
    return lines[start + 1:end]


@pytest.mark.slow
def test_a_changed_line_is_told_by_chapter_title_and_diff(printed):
    lines, status = printed
    assert status == 1
    assert after(lines, "07_tiny (en), [2] test_double: [T1] check, run this cell") == [
        "under: Step 1 · Marks", "--- stored output", "+++ new output", " [stdout]", "-[T1] ok",
        "+[T1] got 1, expected 3", " tail"]


@pytest.mark.slow
def test_html_is_compared_element_by_element(printed):
    assert after(printed[0], "07_tiny (en), [3] from IPython.display import HTML")[3:] == [
        " <td>T1</td>", "-<td>6 / 6</td></tr></table>", "+<td>5 / 6</td></tr></table>",
        " [text/plain]"]


@pytest.mark.slow
def test_an_error_shows_the_end_of_its_traceback(printed):
    told = after(printed[0], "07_tiny (en), [4] def broken():")
    assert told[:3] == ["under: Deeper", "Cell execution caused an exception", "ValueError: no such pool"]
    assert told[-1] == "ValueError: no such pool" and len(told) < 20 and not any("\x1b" in line for line in told)


@pytest.mark.slow
def test_a_long_diff_is_cut_and_nothing_prints_json(printed):
    lines, _ = printed
    told = after(lines, "07_tiny (en), [5] print('\\n'.join(str(-n) for n in range(200)))")
    assert len(told) == 42 and told[-1].startswith("… and ")
    assert len(lines) < 110 and max(map(len, lines)) < 140
    assert not any(word in line for line in lines for word in ("output_type", "mismatch", "{'", "Input:"))
    assert "07_tiny (en), [1] print('same')" not in lines and not any("[6]" in line for line in lines)
