"""Read one handed-in file: bytes in any encoding, a notebook or an exported script, become cells.

Nothing is run and nothing of the file is trusted: outputs, kernels, tags and points are not even kept.
"""
import codecs
import json
import re
import sys
from dataclasses import dataclass

from autograde.pieces import statements

MOST_CELLS = 2_000
MOST_CODE = 2_000_000  # characters in all cells together

_MARKER = re.compile(r"#\s?(?:%%(?![\w%!])|In\s?\[[ \d*]*\]:|<(?:code|markdown)cell>|COMMAND -{5,}|\+(?:\s|$)|-$)")
_COLAB = "# Commented out IPython magic to ensure Python compatibility."


class Unreadable(Exception):
    """Not a notebook: the message is one bilingual line for the learner."""


@dataclass(frozen=True)
class Cell:
    """One cell as handed in: its kind ("code", "markdown", "raw"), text, and ids ("" where it has none)."""

    kind: str
    source: str
    grade_id: str = ""
    cell_id: str = ""


def read(name, data):
    """(cells, notes) of a file: notes are bilingual lines about what had to be understood. Raises Unreadable."""
    if not data.strip(b"\0 \r\n\t"):
        raise Unreadable("文件是空的 · the file is empty")
    text, notes = _decode(data)
    if is_script(name):
        cells = _script_cells(text)
        notes.append("交的是导出的 .py，已拆成单元格 · an exported .py was handed in: it was split into cells")
    else:
        cells = _notebook_cells(_json(text), notes)
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"单元格太多 · too many cells: {len(cells):,}, the limit is {MOST_CELLS:,}")
    length = sum(len(cell.source) for cell in cells)
    if length > MOST_CODE:
        raise Unreadable(f"文字太多 · too much text: {length:,} characters, the limit is {MOST_CODE:,}")
    return tuple(cells), tuple(notes)


def is_script(name):
    """Is this the name of an exported script rather than of a notebook?"""
    return bool(re.search(r"\.(py|ipy)(\.txt)?$", name, re.I))


def _decode(data):
    """(text, notes): by byte order mark, by the zeros of UTF-16, then UTF-8, then GB18030."""
    marks = [(codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
             (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF32_BE, "utf-32")]
    encodings = [encoding for mark, encoding in marks if data.startswith(mark)][:1]
    if not encodings and b"\0" in data[:2]:
        encodings = ["utf-16-be" if data[:1] == b"\0" else "utf-16-le"]
    for encoding in encodings or ["utf-8", "gb18030"]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        usual = encoding.startswith("utf-8")
        return text, [] if usual else [f"文件编码是 {encoding}，已转换 · the file was in {encoding}: it was converted"]
    raise Unreadable("认不出文字编码 · the text is in no encoding we know (UTF-8, UTF-16, GBK)")


def _json(text):
    start = text.lstrip()
    if start.startswith("<") and not start.startswith("<<<<<<<"):
        raise Unreadable("这是网页，不是 notebook · this is a web page, not a notebook: hand in the .ipynb")
    if re.search(r"^<<<<<<< ", text, re.M):
        raise Unreadable("文件里有没解决的 git 冲突 · the file holds an unresolved git conflict")
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise Unreadable("JSON 嵌套太深 · the JSON is nested too deeply") from None
    except ValueError as error:
        if getattr(error, "pos", 0) >= len(text.rstrip()) - 1 or "Unterminated" in str(error):
            raise Unreadable(
                "文件不完整，上传可能中断了 · the file is cut off (an upload that broke?): hand it in again"
            ) from None
        where = f"line {error.lineno}" if hasattr(error, "lineno") else "a number too long"
        raise Unreadable(f"不是有效的 notebook 文件 · not a valid notebook file (JSON error: {where})") from None


def _notebook_cells(notebook, notes):
    content = notebook if isinstance(notebook, dict) else {}
    raw = content.get("cells")
    if raw is None and isinstance(content.get("worksheets"), list):
        notes.append("旧格式 nbformat 3，已转换 · the old notebook format 3 was converted")
        raw = [cell for sheet in content["worksheets"] for cell in _list(_dict(sheet).get("cells"))]
    if not isinstance(raw, list):
        raise Unreadable("这个 JSON 文件不是 notebook · this JSON file is no notebook: it has no cells")
    metadata = _dict(content.get("metadata"))
    for info in (_dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))):
        language = str(info.get("language") or info.get("name") or "python")
        if not re.search("py", language, re.I):
            name = language[:20]
            notes.append(f"内核写的是 {name}，按 Python 运行 · the kernel was {name}: Python was used")
            break
    return [_cell(cell) for cell in raw if isinstance(cell, dict)]


def _cell(raw):
    metadata = _dict(raw.get("metadata"))
    grade_id = next((v["grade_id"] for v in [metadata.get("nbgrader"), *metadata.values(), metadata]
                     if isinstance(v, dict) and isinstance(v.get("grade_id"), str)), "")
    cell_id = raw.get("id") or metadata.get("id")
    kind = raw.get("cell_type")
    kind = kind if kind in ("code", "raw") else "markdown"
    # A class hands in the same long tools cell a thousand times: one copy of it is enough.
    source = sys.intern(_text(raw.get("source", raw.get("input"))))
    return Cell(kind, source, grade_id, cell_id if isinstance(cell_id, str) else "")


def _text(source):
    """A cell's text, whether stored as one string or as lines, with plain line ends and no broken characters."""
    lines = source if isinstance(source, list) else [source]
    text = "".join(line for line in lines if isinstance(line, str))
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff").replace("\0", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _dict(value):
    return value if isinstance(value, dict) else {}


def _list(value):
    return value if isinstance(value, list) else []


def _script_cells(text):
    """Cells of an export: at its markers (`# %%`, `# In[3]:`, …), or one a statement where it has none."""
    text = _uncommented(_text(text))
    cells, kind, grade_id, lines = [], "code", "", []
    for line in [*text.split("\n"), None]:
        if line is not None and not _MARKER.match(line):
            lines.append(line)
            continue
        if any(one.strip() for one in lines):
            cells.append(Cell(kind, "\n".join(lines).strip("\n"), grade_id))
        if line is not None:
            kind = "markdown" if "markdown" in line else "raw" if "[raw]" in line else "code"
            found = re.search(r'"grade_id": ?"([^"]+)"', line)
            grade_id, lines = found[1] if found else "", []
    if len(cells) > 1:
        return cells
    return [Cell("code", source) for source in statements(text)]


def _uncommented(text):
    """Colab's export comments whole cells out where they start with a magic like `%%time`; bring their code back."""
    lines, before, magic = [], "", False
    for line in text.split("\n"):
        if before.startswith(_COLAB):
            magic = bool(re.match(r"# %%(time|timeit|capture|prun)\b", line))
            lines.append(line)
        elif magic and re.match(r"#( |$)", line):
            lines.append(line[2:])
        else:
            magic = False
            lines.append(line)
        before = line
    return "\n".join(lines)
