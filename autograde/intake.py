"""Find the submissions in whatever an instructor was given: whose they are, of which chapter, in which files.

Known forms: nbgrader's `submitted/<learner>/<assignment>/`, the exports of Canvas, Moodle and Gradescope, and a flat
folder of `learner_*.ipynb`; each may be a zip or hold zips. What cannot be read is reported, never raised.
"""
import hashlib
import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from autograde import pieces, reading, unpack
from autograde.chapter import load_chapters
from autograde.errors import InputError

_WRAPPERS = re.compile(r"submissions?|submitted|inbound|export|assignment_\d+_export|homework|hw|作业|提交", re.I)
_CANVAS = re.compile(r"(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<id>\d+)_\d+_(?P<file>.+)$")
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)$")
_GRADESCOPE = re.compile(r"submission_\d+$")
_EXCHANGE = re.compile(r"(?P<name>[^+]+)\+[^+]+\+\d{4}-\d\d-\d\d .*$")  # nbgrader's inbound folder
_NOTEBOOK = re.compile(r"\.(ipynb|py|zip)\b", re.I)
_COPY = re.compile(
    r"^(copy of|副本|kopie von|copie de)[\s_-]*|[\s_-]*(\(\d+\)|（\d+）|-?copy\d*|- ?副本|的副本|-\d)$", re.I)
_FOREIGN = (".html", ".htm", ".pdf", ".rar", ".7z", ".tar", ".gz", ".tgz", ".docx", ".doc", ".png", ".jpg")


@dataclass(frozen=True)
class Candidate:
    """A file that may be a learner's notebook: its place as handed in, what was read, and why it could not be."""

    name: str
    cells: tuple = ()
    notes: tuple = ()
    problem: str = ""
    digest: str = ""  # SHA-256 of the bytes


@dataclass(frozen=True)
class Submission:
    """What one learner handed in for one chapter (None: of no known chapter); `problems` are bilingual lines."""

    learner: str
    chapter: str | None
    candidates: tuple
    problems: tuple

    @property
    def folder(self):
        """A folder name made of the learner's name, safe on every system, another one for every other name."""
        return safe_name(self.learner)


@dataclass(frozen=True)
class _Item:
    """A file with its owner: `key` tells learners apart, `learner` is the name to show."""

    parts: tuple
    candidate: Candidate | None
    problem: str
    key: tuple = ()
    learner: str = ""


def find_submissions(path, *, chapters=None, learner=None):
    """Every Submission below a folder, in a zip or in a single file, by learner and chapter.

    learner: all of it is this learner's. Raises InputError only where there is no such path.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected a folder, a zip or a notebook")
    chapters = load_chapters() if chapters is None else chapters
    items, metadata = [], {}
    for entry in unpack.entries(path):
        if entry.parts and entry.parts[-1] == "submission_metadata.yml" and len(entry.parts) < 4 and entry.data:
            metadata |= _gradescope_names(entry.data)
        else:
            items.append(_item(entry, chapters))
    if learner is not None:
        owned = [replace(item, key=(learner,), learner=learner) for item in items]
    else:
        owned = _owned(_unwrapped(items), metadata, chapters, _stem(path.name))
    return _submissions(owned, chapters)


def safe_name(name):
    """A folder name for a learner's name: letters (of any script), digits, `_`, `-`; a hash where it was changed."""
    plain = re.sub(r"[^\w-]+", "_", unicodedata.normalize("NFKC", name)).strip("_-")[:40]
    reserved = re.fullmatch(r"(?i)con|prn|aux|nul|com\d|lpt\d|", plain)
    if plain == name and not reserved:
        return plain
    return f"{plain or 'learner'}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def chapter_of(candidate, parts, chapters):
    """The name of the chapter that a file belongs to, or None.

    What is inside counts first: the TODOs' functions and grade ids, which nobody renames by accident; cell ids count
    less. Only where these say nothing or the same of two chapters, the file's name is asked, then its folders'.
    """
    found = {chapter.name: _hits(candidate, chapter) for chapter in chapters}
    most = max(found.values(), default=0)
    best = [chapter for chapter in chapters if found[chapter.name] == most]
    if most and len(best) == 1:
        return best[0].name
    for part in reversed(parts):
        named = [chapter.name for chapter in best if _names(part, chapter.name)]
        if len(named) == 1:
            return named[0]
    return None


def _hits(candidate, chapter):
    names = {name for todo in chapter.todos for name in todo.functions}
    ids = {grade_id for todo in chapter.todos for grade_id in (todo.grade_id, *todo.tests)}
    hits = 0
    for cell in candidate.cells:
        hits += 3 * len(names & pieces.defined(cell.source)) + 2 * (cell.grade_id in ids) + (cell.cell_id in ids)
    return hits


def _names(part, name):
    """Does a file's or folder's name hold the chapter's name, or its number as a word?"""
    number = name.split("_")[0]
    return name.lower() in part.lower() or bool(re.search(rf"(?<![0-9a-z]){number}(?![0-9a-z])", part, re.I))


def _item(entry, chapters):
    """Read a file at once, so that its bytes (outputs and all) can go."""
    name = "/".join(entry.parts)
    looks_right = re.search(r"\.ipynb", name.rsplit("/", 1)[-1], re.I)
    if entry.problem:
        return _Item(entry.parts, None, f"{name}：{entry.problem}")
    suffix = re.search(r"\.\w+$", name.lower())
    if entry.data is None:
        kind = suffix[0] if suffix else ""
        problem = f"{name}：{kind} 不能评分，请交 .ipynb · a {kind} cannot be graded: hand in the .ipynb"
        problem = problem if kind in _FOREIGN else ""
        return _Item(entry.parts, None, problem)
    digest = hashlib.sha256(entry.data).hexdigest()
    try:
        cells, notes = reading.read(name, entry.data)
    except reading.Unreadable as error:
        if not looks_right:
            return _Item(entry.parts, None, "")
        return _Item(entry.parts, Candidate(name, problem=str(error), digest=digest), "")
    candidate = Candidate(name, cells, notes, digest=digest)
    if reading.is_script(name) and not any(_hits(candidate, chapter) for chapter in chapters):
        return _Item(entry.parts, None, "")  # a module of the learner's own
    return _Item(entry.parts, candidate, "")


def _unwrapped(items):
    """The items without the folders around the learners' ones (`submitted/`, an export's own name)."""
    while True:
        tops = {item.parts[0] for item in items if item.parts}
        inside = {item.parts[1] for item in items if len(item.parts) > 1}
        deep = all(len(item.parts) > 1 for item in items)
        inner = [top for top in tops if _stem(top).lower() == "submitted"]
        lms = any(pattern.match(name) for name in inside for pattern in (_CANVAS, _MOODLE, _GRADESCOPE, _EXCHANGE))
        if inner and any(len(item.parts) > 2 for item in items if item.parts and item.parts[0] == inner[0]):
            items = [item for item in items if item.parts and item.parts[0] == inner[0]]
        elif not (len(tops) == 1 and deep and (_WRAPPERS.fullmatch(_stem(next(iter(tops)))) or lms)):
            return items
        items = [replace(item, parts=item.parts[1:]) for item in items]


def _owned(items, metadata, chapters, root):
    """The items with their learners; a group's files go to each of its members."""
    flat = [item.parts[0] for item in items if item.candidate and len(item.parts) == 1]
    tail = _common_tail([_without_copy(_stem(name)) for name in flat])
    named = {name: _flat_learner(name, tail, chapters) for name in {item.parts[0] for item in items if item.parts}}
    # A notebook called just as it was handed out: the folder is one learner's own.
    one = any(not named[name] for name in flat)
    owned = []
    for item in items:
        first = item.parts[0] if item.parts else root
        match = _CANVAS.match(first) or _MOODLE.match(first) or _EXCHANGE.match(first)
        if match:
            who = match.groupdict()
            late = ("Canvas 标记为迟交 · handed in late, says Canvas",) if who.get("late") else ()
            candidate = item.candidate and replace(item.candidate, notes=(*item.candidate.notes, *late))
            item = replace(item, candidate=candidate)
            owners = [((who["name"], who.get("id", "")), who["name"])]
        elif _GRADESCOPE.match(first) and len(item.parts) > 1:
            owners = metadata.get(first) or [((first,), first)]
        else:
            folder = len(item.parts) > 1 and not first.lower().endswith(".zip")
            name = _stem(first) if folder else "" if one or not _NOTEBOOK.search(first) else named[first]
            owners = [((name or root,), name or root)]
        owned += [replace(item, key=key, learner=name) for key, name in owners]
    return _told_apart(owned)


def _told_apart(owned):
    """Two learners of one name keep apart: the number that the platform gave each is shown behind the name."""
    keys = defaultdict(set)
    for item in owned:
        keys[item.learner].add(item.key)
    return [replace(item, learner=f"{item.learner} ({item.key[-1]})") if len(keys[item.learner]) > 1 else item
            for item in owned]


def _flat_learner(name, tail, chapters):
    """The learner in a flat file's name: what is left without the chapter, without marks of copies; "" for nothing."""
    stem = re.sub(r"^untitled\d*$", "", _without_copy(_stem(name)), flags=re.I)
    for chapter in chapters:
        for part in (chapter.name, chapter.name.split("_")[0]):
            stem = re.sub(rf"(?<![0-9A-Za-z])_*{re.escape(part)}(?![0-9A-Za-z])", "", stem, flags=re.I)
    if tail and stem.endswith(tail):
        stem = stem[: -len(tail)]
    return _without_copy(stem).strip(" _-+.")


def _common_tail(stems):
    """The `_…` that all of several names end with: the assignment's name."""
    tails = {stem[stem.index("_"):] for stem in stems if "_" in stem}
    return tails.pop() if len(tails) == 1 and len(stems) > 1 and all("_" in stem for stem in stems) else ""


def _stem(name):
    """A name without its endings: `x.ipynb.txt`, `x.IPYNB`, `x.zip` are all x."""
    return re.sub(r"(\.(ipynb|txt|json|py|zip))+$", "", name, flags=re.I)


def _without_copy(stem):
    before = None
    while before != stem:
        before, stem = stem, _COPY.sub("", stem)
    return stem


class _Loader(yaml.SafeLoader):
    """YAML with Ruby's tags left out."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: (
    loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None))


def _gradescope_names(data):
    """{submission folder: [(key, name), …]} of Gradescope's metadata; {} where it cannot be read."""
    try:
        content = yaml.load(data.decode("utf-8", "replace"), Loader=_Loader)
        return {
            folder: [
                ((str(one.get(":name")), str(one.get(":sid") or one.get(":email"))), str(one.get(":name")))
                for one in about[":submitters"]
            ]
            for folder, about in content.items()
        }
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}


def _submissions(owned, chapters):
    learners = defaultdict(list)
    for item in owned:
        learners[item.learner].append(item)
    return [one for learner, items in sorted(learners.items()) for one in _of_learner(learner, items, chapters)]


def _of_learner(learner, items, chapters):
    """The learner's submissions, one a chapter; files of no chapter are named in the first one's problems."""
    lines = [item.problem for item in items if item.problem]
    groups, places = defaultdict(list), {}
    for item in items:
        if item.candidate and item.candidate.digest not in places:
            places[item.candidate.digest] = item
            groups[chapter_of(item.candidate, item.parts, chapters)].append(item.candidate)
    stray = groups.pop(None, [])
    for chapter in chapters:
        group = groups[chapter.name]
        useless = [one for one in group if not one.problem and not _hits(one, chapter)]
        if len(useless) < len(group):  # a scratch notebook beside the right one
            groups[chapter.name] = [one for one in group if one not in useless]
            stray += useless
    groups = {name: group for name, group in sorted(groups.items()) if group}
    if not groups:
        named = {chapter_of(Candidate(""), item.parts, chapters) for item in items} - {None}
        if not stray:
            files = ", ".join("/".join(item.parts) for item in items[:5])
            lines.append(f"没有找到 notebook · no notebook was found, only: {files}")
        groups = {named.pop() if len(named) == 1 else None: stray}
    else:
        stranger = "不属于任何章节，没有评分 · belongs to no chapter: not graded"
        lines += [f"{one.name}：{one.problem or stranger}" for one in stray]
    for name, group in groups.items():
        yield Submission(learner, name, tuple(group), (*lines, *_remarks(group)))
        lines = []  # said once


def _remarks(candidates):
    for one in candidates:
        if one.problem:
            yield f"{one.name}：{one.problem}"
    if len(candidates) > 1:
        number, names = len(candidates), ", ".join(one.name for one in candidates)
        yield f"交了 {number} 份，取较好的 · {number} files were handed in, the better counts: {names}"
