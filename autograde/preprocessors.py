"""What the course adds to nbgrader's own chain of preprocessors, and to the HTML of its pages."""
from jinja2 import pass_context
from nbconvert.exporters.html import HTMLExporter
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import ClearHiddenTests, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_locked

NO_GRADE_IDS = (
    "没有任何单元格带有课程的评分标记，请把答案放进原始的章节文件 · no cell carries the course's grading "
    "metadata: put the answers into the chapter notebook as it was handed out"
)
_TAGS = (
    "a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s "
    "small span strong sub summary sup table tbody td th thead tr u ul"
).split()
_ATTRIBUTES = {
    "*": ["class", "id", "title"], "a": ["href"], "img": ["src", "alt"], "td": ["colspan"], "th": ["colspan"],
}
_sanitizer = SanitizeHTML(tags=_TAGS, attributes=_ATTRIBUTES)


class TidyMetadata(NbGraderPreprocessor):
    """Give every cell of a submission the grading metadata that its grade id had when handed out.

    A copied cell keeps none (the last copy counts, as with nbgrader's DeduplicateIds), nor does one with
    an unknown grade id: nbgrader takes either for an old file format and stops the whole class.
    Raises ValueError when no cell is left that could be graded.
    """

    def preprocess(self, notebook, resources):
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            wanted = _released_metadata(gradebook.find_notebook(names["notebook"], names["assignment"]))
        found = set()
        for cell in reversed(notebook.cells):
            metadata = cell.metadata.pop("nbgrader", None)
            grade_id = metadata.get("grade_id") if isinstance(metadata, dict) else None
            if isinstance(grade_id, str) and grade_id in wanted and grade_id not in found:
                cell.metadata["nbgrader"] = wanted[grade_id]
                found.add(grade_id)
        if not found:
            raise ValueError(NO_GRADE_IDS)
        return notebook, resources


class StderrToStdout(NbGraderPreprocessor):
    """nbgrader gives 0 points to a test cell with any text on stderr, such as a library's warning."""

    def preprocess_cell(self, cell, resources, cell_index):
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.name = "stdout"
        return cell, resources


class HideTests(ClearHiddenTests):
    """Keep hidden tests off a feedback page: their lines, and tracebacks that would quote them.

    Only graded cells can hold them; the marker's text in a learner's own cell is left alone. The folded
    cell of course tools is cut to its title: its colours alone would take most of the page's time and size.
    """

    def preprocess_cell(self, cell, resources, cell_index):
        if cell.metadata.get("jupyter", {}).get("source_hidden") and is_locked(cell):
            cell.source = cell.source.split("\n")[0]
        if not is_grade(cell):
            return cell, resources
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.traceback = [line.splitlines()[-1] for line in output.traceback[-1:] if line]
        return super().preprocess_cell(cell, resources, cell_index)


def clean_html(html):
    """HTML that may stand on a feedback page: no scripts, styles, event handlers or odd links."""
    return _sanitizer.sanitize_html_tags(html.decode() if isinstance(html, bytes) else str(html))


@pass_context
def clean_markdown(context, source):
    """Markdown of a learner as HTML without scripts; nbgrader's own templates put it in as it is."""
    return clean_html(HTMLExporter().markdown2html(context, source))


def _released_metadata(notebook):
    points = {cell.name: cell.max_score for cell in notebook.grade_cells}
    solutions = {cell.name for cell in notebook.solution_cells}
    metadata = {}
    for cell in notebook.source_cells:
        metadata[cell.name] = NotebookNode(
            cell_type=cell.cell_type, checksum=cell.checksum, grade=cell.name in points, grade_id=cell.name,
            locked=cell.locked, schema_version=3, solution=cell.name in solutions, task=False,
        )
        if cell.name in points:
            metadata[cell.name]["points"] = points[cell.name]
    return metadata
