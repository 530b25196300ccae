"""What `build --check` refuses in a chapter script, each as one line that names file and cell."""
import ast
import re
from collections import Counter

from autograde.badges import BADGES, TWIN
from autograde.build import release_notebook
from autograde.chapter import (
    LANGUAGES,
    VARIANTS,
    defined_functions,
    is_answer,
    is_variant,
    nbgrader,
    tags,
)
from autograde.errors import InputError
from autograde.inline import toolkit_imports

REGIONS = ("SOLUTION", "HIDDEN TESTS")
KNOWN_TAGS = {*LANGUAGES, *VARIANTS, "answer", "nbval-ignore-output"}
_SHORTEST_SECRET = 16  # shorter lines (`continue`, `return result`) say nothing
_TELLING = 30  # a line this long is an answer also where it is only a part of a line


def problems(chapter):
    """All problems of one chapter: those of its script, or where it has none, what its notebooks would leak."""
    found = [
        *_odd_cells(chapter),
        *_unpaired(chapter),
        *_unbalanced(chapter),
        *_repeated_ids(chapter),
        *_orphan_tests(chapter),
        *_stubs(chapter),
        *_untagged_answers(chapter),
    ]
    return found or list(_leaks(chapter))


def _odd_cells(chapter):
    """Tags and metadata that the build does not know, code that is none, helpers imported in two places."""
    imports = 0
    for cell in chapter.cells:
        where, meta = chapter.where(cell), nbgrader(cell)
        for tag in sorted(tags(cell) - KNOWN_TAGS):
            yield f"{where}: unknown tag {tag!r}; known are {', '.join(sorted(KNOWN_TAGS))}"
        left = {"todo", "name", "hint", "edits"} & set(cell.metadata)
        if left and not is_variant(cell):
            yield f"{where}: {', '.join(sorted(left))} without the tag {' or '.join(VARIANTS)}: learners would get it"
        if cell.cell_type != "code":
            continue
        if tags(cell) & set(LANGUAGES):
            yield f"{where}: a code cell is the same in all languages, it has no tag zh or en"
        try:
            imports += bool(toolkit_imports(cell.source))
            tree = ast.parse(cell.source)
        except (SyntaxError, InputError) as error:
            yield f"{where}: {error}"
            continue
        if not toolkit_imports(cell.source) and any(_is_toolkit(node) for node in ast.walk(tree)):
            yield f"{where}: imports from the toolkit beside the one cell that does nothing else"
        if meta.get("solution") and meta.get("locked") or meta.get("grade") and not meta.get("locked"):
            yield f"{where}: solution cells are unlocked, test cells are locked"
        for region, kind in zip(REGIONS, ("solution", "grade")):
            if f"BEGIN {region}" in cell.source and not meta.get(kind):
                yield f"{where}: a region {region} in a cell that is no {kind} cell"
    if imports != 1:
        yield f"{chapter.path.name}: {imports} cells import from the toolkit, expected 1"
    first = [cell for cell in chapter.cells if cell.cell_type == "markdown"][:2]
    if [BADGES in cell.source for cell in first] != [True, True]:
        yield f"{chapter.path.name}: the first two Markdown cells (zh and en) hold the title and a line {BADGES}"
    scores = [cell for cell in chapter.cells if cell.cell_type == "code" and "scorecard()" in cell.source]
    below = chapter.cells[chapter.cells.index(scores[-1]):] if scores else ()
    if not sum(TWIN in cell.source for cell in chapter.cells) == sum(TWIN in cell.source for cell in below) == 2:
        yield f"{chapter.path.name}: below the scorecard, two Markdown cells (zh and en) hold {TWIN}, no other does"


def _is_toolkit(node):
    names = [alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)]
    return any(str(name).split(".")[0] == "toolkit" for name in [getattr(node, "module", ""), *names])


def _unpaired(chapter):
    """A Chinese cell is directly followed by its English twin; no English cell stands alone."""
    previous = None
    for cell in [*chapter.cells, None]:
        if previous is not None and not (cell is not None and _are_twins(previous, cell)):
            yield f"{chapter.where(previous)}: a Chinese cell without an English twin right after it"
        if cell is not None and "en" in tags(cell) and not (previous is not None and _are_twins(previous, cell)):
            yield f"{chapter.where(cell)}: an English cell without its Chinese twin right before it"
        previous = cell if cell is not None and "zh" in tags(cell) else None
    for cell in chapter.cells:
        if cell.cell_type != "markdown":
            continue
        if len(tags(cell) & set(LANGUAGES)) != 1:
            yield f"{chapter.where(cell)}: a Markdown cell needs the tag zh or en"
        # Links, code and names are the same in both languages: a little of the other one is normal.
        prose = re.sub(r"<!--.*?-->|`[^`]*`|\[[^\]]*\]\([^)]*\)|```.*?```|[\W\d_]", "", cell.source, flags=re.S)
        chinese = len(re.findall(r"[\u4e00-\u9fff]", prose))
        if not prose and not cell.source.strip():
            yield f"{chapter.where(cell)}: an empty cell"
        elif prose and ("zh" in tags(cell)) != (chinese * 5 > len(prose)):
            language = "zh" if "zh" in tags(cell) else "en"
            yield f"{chapter.where(cell)}: tagged {language}, but {chinese} of {len(prose)} letters are Chinese"


def _are_twins(chinese, english):
    return "en" in tags(english) and tags(chinese) - {"zh"} == tags(english) - {"en"}


def _unbalanced(chapter):
    for cell in chapter.cells:
        for region in REGIONS:
            depth = 0
            for kind in re.findall(rf"(BEGIN|END) {region}", cell.source):
                depth += 1 if kind == "BEGIN" else -1
                if depth not in (0, 1):
                    break
            if depth:
                yield f"{chapter.where(cell)}: unbalanced `### BEGIN {region}` / `### END {region}`"


def _repeated_ids(chapter):
    counts = Counter(nbgrader(cell)["grade_id"] for cell in chapter.cells if nbgrader(cell))
    for cell in chapter.cells:
        grade_id = nbgrader(cell).get("grade_id")
        if counts[grade_id] > 1:
            yield f"{chapter.where(cell)}: the grade id {grade_id} is used {counts[grade_id]} times"
    names = Counter((variant.todo, variant.name) for variant in chapter.variants)
    for (todo, name), count in names.items():
        if count > 1:
            yield f"{chapter.path.name}: {count} variants of {todo} are named {name!r}"


def _orphan_tests(chapter):
    """Every test cell belongs to a TODO and checks under its own grade id; every TODO is tested."""
    owned = {test_id for todo in chapter.todos for test_id in todo.tests}
    for cell in chapter.cells:
        grade_id = nbgrader(cell).get("grade_id", "")
        if not nbgrader(cell).get("grade"):
            continue
        if grade_id not in owned:
            yield f"{chapter.where(cell)}: no TODO it belongs to; test ids are test_<todo> or test_<todo>_<aspect>"
        for named in re.findall(r"\bcheck\(\s*[\"'](\w+)[\"']", cell.source):
            if named != grade_id:
                yield f"{chapter.where(cell)}: check({named!r}, …) should name the cell's own id {grade_id!r}"
    for todo in chapter.todos:
        if f"test_{todo.grade_id}" not in todo.tests:
            yield f"{chapter.path.name}: TODO {todo.grade_id} has no test cell test_{todo.grade_id}"


def _stubs(chapter):
    """A solution cell keeps its frame: a solution region, then the stub's raise with the TODO's number."""
    cells = [cell for cell in chapter.cells if nbgrader(cell).get("solution")]
    for number, cell in enumerate(cells, 1):
        stub = rf"### BEGIN SOLUTION\n.*### END SOLUTION\s*\n\s*raise NotImplementedError\([^\n]*TODO {number}\b"
        if not re.search(stub, cell.source, re.S):
            yield (
                f"{chapter.where(cell)}: needs `### BEGIN SOLUTION`, `### END SOLUTION` and right after it "
                f"`raise NotImplementedError(\"TODO {number} …\")`"
            )


def _untagged_answers(chapter):
    """A second definition of a TODO's function would hand the learner its answer."""
    owners = {name: todo.grade_id for todo in chapter.todos for name in todo.functions}
    for cell in chapter.cells:
        if cell.cell_type != "code" or is_variant(cell):
            continue
        for name in defined_functions(cell.source):
            if name in owners and nbgrader(cell).get("grade_id") != owners[name]:
                yield f"{chapter.where(cell)}: defines {name}; tag it {' or '.join(VARIANTS)}, or learners get it"


def _leaks(chapter):
    """No line of a solution, a hidden test or an answer stands in a learner's notebook."""
    secrets = _secret_lines(chapter)
    for language in LANGUAGES:
        for number, cell in enumerate(release_notebook(chapter, language).cells, 1):
            if nbgrader(cell).get("grade") and re.search(r"hidden_rng\(|hidden\s*=\s*True", cell.source):
                yield f"course/{language}/{chapter.name}, cell {number} (id {cell.id}): shows a hidden test"
            shown, lines = " ".join(cell.source.split()), _lines(cell.source)
            is_test = nbgrader(cell).get("grade")  # a check names expected values, which a solution holds too
            found = next((s for s in secrets if s in lines or len(s) >= _TELLING and s in shown and not is_test), None)
            if found:
                yield (
                    f"course/{language}/{chapter.name}, cell {number} (id {cell.id}): shows {found!r}, "
                    f"which is part of {secrets[found]}"
                )


def _secret_lines(chapter):
    """{line: where it comes from}. What the same cell shows openly as well is no secret."""
    secrets = {}
    for cell in chapter.cells:
        for region in REGIONS:
            inside, outside = _split_region(cell.source, region)
            for line in inside - (outside if region == "HIDDEN TESTS" else set()):
                secrets[line] = f"{chapter.where(cell)}, {region.lower()}"
        if is_answer(cell):
            for line in _lines(cell.source):
                secrets[line] = chapter.where(cell)
    return {line: where for line, where in secrets.items() if len(line) >= _SHORTEST_SECRET}


def _split_region(source, region):
    inside, outside, within = [], [], False
    for line in source.split("\n"):
        if f"BEGIN {region}" in line or f"END {region}" in line:
            within = f"BEGIN {region}" in line
        else:
            (inside if within else outside).append(line)
    return _lines("\n".join(inside)), _lines("\n".join(outside))


def _lines(source):
    return {" ".join(line.split()) for line in source.split("\n")}
