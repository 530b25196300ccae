"""Carry a learner's answers over into the release's order, whatever became of their notebook. Nothing is run.

Only the *definitions* of a submission count: where the TODOs' functions are defined, and what these need. A cell
of the learner's own runs whole when an answer needs a name that it binds or changes; cells that no answer needs
(plots, trials, `sys.exit()`) do not run. Of cells that the release handed out, only what the learner added counts.
"""
import re
from collections import Counter
from dataclasses import dataclass, replace
from math import inf

from autograde import pieces
from autograde.handout import DEFINES, Unit, handed_out, likeness, lines_of, squeezed

_ALIKE = 0.5  # share of a released cell's lines that make an edited cell still that cell


@dataclass(frozen=True)
class Repaired:
    """What runs of a submission.

    cells: (grade_id, source) in running order. The grade id is that of the TODO answered, of a given cell, or "".
        A check's grade id with the source "" marks where it stood: the last cell its TODO needs has run.
    notes: one bilingual line for every repair; an untouched submission has none.
    problems: (grade_id, bilingual line) for every TODO whose answer cannot be run as it is.
    """

    cells: tuple
    notes: tuple
    problems: tuple


def repair(chapter, candidate):
    """The Repaired form of a candidate that was read (see intake.py); nothing to run where it could not be read."""
    if candidate.problem:
        return Repaired((), tuple(candidate.notes), tuple((todo.grade_id, candidate.problem) for todo in chapter.todos))
    return _Repair(chapter, handed_out(chapter), candidate).result()


def is_stub(chapter, grade_id, source):
    """Is this source of a TODO's cell unfinished: some function of the TODO missing, or never able to return?"""
    todo = next(todo for todo in chapter.todos if todo.grade_id == grade_id)
    stub = handed_out(chapter).stubs[grade_id]
    code, _ = pieces.plain_python(source)
    return any(pieces.is_unfinished(code, name, stub) for name in todo.functions)


class _Repair:
    """One repair under way: reads the cells, chooses the answers, collects what they need, puts it in order."""

    def __init__(self, chapter, release, candidate):
        self.chapter, self.release = chapter, release
        self.functions = {name: todo for todo in chapter.todos for name in todo.functions}
        self.notes, self.problems, self.seen = list(candidate.notes), [], Counter()
        self.units, self.places, self.changed = [], {}, Counter()
        for at, cell in enumerate(candidate.cells):
            self._read(at, cell)
        self.winners = {name: self._winner(name) for name in self.functions}

    def result(self):
        needed = {todo.grade_id: self._needed(todo) for todo in self.chapter.todos}
        kept = set().union(*needed.values(), self._given())
        order = self._ordered(kept)
        last = {grade_id: max(order.index(unit) for unit in units) for grade_id, units in needed.items()}
        cells, placed = [], set()
        for number, unit in enumerate(order):
            label, source = self._label(unit), self._final(unit, placed)
            if unit.at == -1 and cells and cells[-1][0] == label:
                cells[-1] = (label, f"{cells[-1][1]}\n{source}")  # statements of the release, together
            elif source.strip():
                cells.append((label, source))
            cells += [(test, "") for todo in self.chapter.todos if last[todo.grade_id] == number for test in todo.tests]
            placed |= {name for name, winner in self.winners.items() if winner == unit}
        self._tell(kept)
        return Repaired(tuple(cells), tuple(dict.fromkeys(self.notes)), tuple(self.problems))

    def _label(self, unit):
        answered = (todo.grade_id for name, todo in self.functions.items() if self.winners[name] == unit)
        return next(answered, unit.label)

    # ---- read

    def _read(self, at, cell):
        """Add the units of one submitted cell."""
        released, exact = self._match(cell)
        role = released.role if released else "own"
        if released:
            self.seen[released.cell_id] += 1
            self.places.setdefault(released.cell_id, []).append(at)
        source, retyped = cell.source, cell.kind != "code"
        if retyped:
            if exact and role != "todo" or squeezed(source) in self.release.markdown:
                self.changed[role] += bool(released)
                return
            source = _unfenced(source)
            if not set(self.functions) & pieces.defined(source):
                self.changed[role] += bool(released)
                return
        if exact and role != "todo":
            return
        if role in ("test", "toolkit", "given", "demo"):
            self.changed[role] += 1
        source, magics = pieces.plain_python(source)
        if magics:
            self.notes.append("魔法命令（%、!）不执行，其余代码照常运行 · magics and shell lines do not run")
        unit = Unit(at, source, grade_id=cell.grade_id, role=role, retyped=retyped)
        mine = role in ("own", "todo") or likeness(released.lines, frozenset(lines_of(cell.source))) < _ALIKE / 2
        for part in self._parts(unit):
            if mine:  # of the learner's own, or nothing that was handed out is left in it
                self._add(part)
            else:
                self._salvage(part, released)

    def _match(self, cell):
        """(the released cell that this one is or was, is its text unchanged): by text, by ids, by likeness."""
        text = squeezed(cell.source)
        if text in self.release.texts:
            return self.release.cells[self.release.texts[text]], True
        for cell_id in (cell.grade_id, cell.cell_id):
            if cell_id in self.release.cells:
                return self.release.cells[cell_id], False
        lines = frozenset(lines_of(cell.source))
        others = [one for one in self.release.cells.values() if one.role != "todo" and len(one.lines) > 2]
        best = max(others, key=lambda one: likeness(one.lines, lines), default=None)
        return (best, False) if best and likeness(best.lines, lines) >= _ALIKE else (None, False)

    def _parts(self, unit):
        """The unit, analysed; broken code in the blocks that compile, and the others."""
        try:
            return [replace(unit, piece=pieces.analyse(unit.source))]
        except SyntaxError as error:
            whole = replace(unit, error=f"line {error.lineno}: {error.msg}" if error.lineno else str(error))
        blocks = [self._block(unit, number, text) for number, text in enumerate(pieces.fragments(unit.source))]
        broken = [name for part in blocks if part.error for name in part.binds if name in self.functions]
        good = [part for part in blocks if not part.error]
        if len(blocks) < 2 or not any(part.binds for part in good):
            return [whole]
        labels = self._labels(broken)
        self.notes.append(
            f"一个单元格有语法错误，其中能运行的函数保留了{'，' + labels + ' 除外' if labels else ''} · "
            f"a cell has a syntax error: its functions that can run were kept{', not ' + labels if labels else ''}")
        return blocks

    def _block(self, unit, number, text):
        part = replace(unit, at=unit.at + number / 1e4, source=text)
        try:
            return replace(part, piece=pieces.analyse(text))
        except SyntaxError as error:
            return replace(part, error=error.msg)

    def _add(self, unit):
        """A cell of the learner's own, without statements that are the release's."""
        if unit.piece:
            own = pieces.without(unit.source, lambda node: pieces.shape(node) in self.release.shapes)
            if not own.strip():
                return
            if own != unit.source.rstrip():
                unit = replace(unit, source=own, piece=pieces.analyse(own))
        self.units.append(unit)

    def _salvage(self, unit, released):
        """Of an edited released cell: the definitions that the learner added."""
        if unit.error:
            if set(self.functions) & unit.binds:
                self.units.append(unit)
            return
        # A demo cell may be edited; of what is locked, the release's own names stay the release's.
        locked = pieces.defined(released.source) if released.role != "demo" else frozenset()
        for number, (first, end, nodes) in enumerate(pieces.spans(unit.source)):
            source = "\n".join(unit.source.split("\n")[first:end])
            part = replace(unit, at=unit.at + number / 1e5, source=source, piece=pieces.analyse(source))
            theirs = all(pieces.shape(node) in self.release.shapes for node in nodes)
            if isinstance(nodes[0], DEFINES) and not theirs and (part.binds or part.piece.changes) - locked:
                self.units.append(part)

    # ---- choose

    def _winner(self, name):
        """The unit that answers with this function, or None: finished before broken before unfinished, then the latest.

        Where the TODO's own cell is finished, an experiment behind its checks does not count, as it did not when
        the learner ran them.
        """
        todo = self.functions[name]
        units = [unit for unit in self.units if name in unit.binds]
        finished = [u for u in units if not u.error and not self._unfinished(u, name)]
        finished = [u for u in finished if not u.retyped] or finished
        checks = self._checks_at(todo)
        early = [u for u in finished if u.at < checks or u.grade_id == todo.grade_id]
        broken = [u for u in units if u.error and not self._unfinished(u, name)]
        unfinished = [u for u in units if u.role == "todo" and u.grade_id == todo.grade_id] or units
        return next((group[-1] for group in (early, finished, broken, unfinished) if group), None)

    def _unfinished(self, unit, name):
        return pieces.is_unfinished(unit.source, name, self.release.stubs[self.functions[name].grade_id])

    def _checks_at(self, todo):
        """Where the TODO's first check cell stands in the submission; infinitely late where none does."""
        return min((at for test in todo.tests for at in self.places.get(test, [])), default=inf)

    def _needed(self, todo):
        """All units that the TODO's functions need, directly or through others."""
        winners = [self.winners[name] or self._stub(todo) for name in todo.functions]
        checks = self._checks_at(todo)
        limit = checks if all(unit.at < checks for unit in winners) else inf
        kept, queue = set(), list(winners)
        queue += [unit for unit in self.units if unit.piece and unit.piece.is_setting and unit.at < limit]
        while queue:
            unit = queue.pop()
            if unit in kept:
                continue
            kept.add(unit)
            if not unit.piece:
                continue
            for name in sorted(unit.piece.uses):
                queue += self._providers(name, unit, limit)
            if unit.piece.looks_up_names:
                queue += [one for one in self._helpers() if one.at < limit]
        return kept

    def _helpers(self, losers=False):
        """Units that may give values to names; versions of answers that lost only if asked for."""
        winners = set(self.winners.values())
        answers = set(self.functions)
        return [unit for unit in self.units if unit.piece and not unit.retyped
                and (losers or unit in winners or not unit.binds & answers)]

    def _providers(self, name, user, limit):
        """The units that give a name its value for `user`."""
        if name in self.functions:
            found = [self.winners[name]] if self.winners[name] not in (None, user) else []
            if name in user.piece.now:  # an earlier version that this one wraps
                earlier = [u for u in self.units if name in u.binds and u.piece and u.at < user.at]
                found += earlier[-1:]
            return found
        for losers in (False, True):  # what lost helps only with names that nothing else defines
            found = [u for u in self._helpers(losers)
                     if u is not user and ({name, "*"} & u.binds or name in u.piece.changes)]
            early = [u for u in found if u.at < limit]
            if name in user.binds:
                return [u for u in early if name in user.piece.now or (u.at > user.at and name in user.piece.later)]
            for group in (early, found):
                if any(name in u.binds for u in group):
                    return group
        return found + [part for part in self.release.parts if name in part.binds | part.piece.changes]

    def _stub(self, todo):
        source = self.release.stubs[todo.grade_id]
        place = -0.5 + self.chapter.todos.index(todo) / 1e3
        return Unit(place, source, todo.grade_id, role="release", piece=pieces.analyse(source))

    def _given(self):
        """The released cells that are given, each in front of the answers that follow it in the release."""
        ids, places, found = list(self.release.cells), {}, []
        for name, unit in self.winners.items():
            if unit:
                places.setdefault(self.functions[name].grade_id, unit.at)
        for number, cell_id in enumerate(ids):
            cell = self.release.cells[cell_id]
            if cell.role == "given":
                later = [places[one] for one in ids[number:] if one in places]
                at = min(later, default=inf) - 1e-6
                found.append(Unit(at, cell.source, cell_id, role="release", piece=pieces.analyse(cell.source)))
        return found

    # ---- order

    def _ordered(self, kept):
        """Units as they stood, except that what a unit reads when it runs comes before it."""
        parts = {id(part): number for number, part in enumerate(self.release.parts)}
        pending = sorted(kept, key=lambda u: (u.at, parts.get(id(u), 0), u.source))
        as_stood, order, bound = list(pending), [], set()
        waiting = Counter(name for unit in pending for name in unit.binds)
        while pending:
            unit = next((u for u in pending if not self._waits(u, bound, waiting)), pending[0])
            pending.remove(unit)
            waiting.subtract(unit.binds)
            bound |= unit.binds
            order.append(unit)
        if [u for u in order if u.role != "release"] != [u for u in as_stood if u.role != "release"]:
            self.notes.append("顺序不对，被用到的已放到前面 · cells were out of order: what others use was put first")
        return order

    def _waits(self, unit, bound, waiting):
        return unit.piece and any(waiting[name] > 0 for name in unit.piece.now - unit.binds - bound)

    def _final(self, unit, placed):
        """The unit's source, without definitions of answers that would replace the chosen ones."""
        losing = {name for name in unit.binds & placed if self.winners[name] != unit}
        if not losing or not unit.piece:
            return unit.source
        return pieces.without(unit.source, lambda node: getattr(node, "name", None) in losing)

    # ---- tell

    def _labels(self, names):
        return ", ".join(dict.fromkeys(self.functions[name].label for name in self.functions if name in names))

    def _tell(self, kept):
        """Put everything that was repaired into words for the learner."""
        for name, todo in self.functions.items():
            unit = self.winners[name]
            if unit is None:
                self.problems.append((todo.grade_id, f"没有找到函数 {name} · no function {name} was found"))
            elif unit.error:
                self.problems.append((todo.grade_id, f"语法错误，没有运行 · a syntax error, not run: {unit.error}"))
        there = {name: unit for name, unit in self.winners.items() if unit}
        ids = {unit.grade_id for unit in self.units}
        away = {n for n, u in there.items() if u.grade_id != self.functions[n].grade_id}
        lost = {n for n in away if self.functions[n].grade_id not in ids}
        self._note(lost, "单元格的标识丢失或改了，已按函数名找到", "a cell lost its id: found by its function")
        inside = {n for n in away if there[n].role not in ("own", "todo")}
        self._note(inside, "答案写在别处（检查、工具或示例单元格）里，已取出",
                   "the answer stood in a check, tools or demo cell: it was taken out")
        self._note(away - lost - inside, "答案写在别的单元格里，已采用", "the answer stood in another cell: used")
        self._note({n for n, u in there.items() if u.retyped}, "代码单元格变成了文本，已按代码运行",
                   "the code cell had become text: it was run as code")
        several = {n for n in there if sum(n in unit.binds for unit in self.units) > 1}
        self._note(several - away, "有不止一份，采用最后完成的一份", "there were several: the last finished one counts")
        answers = set(self.winners.values())
        split = {n for n, t in self.functions.items() if any(u.grade_id == t.grade_id for u in kept - answers)}
        self._note(split - away, "单元格拆成了几个，都已运行", "the cell was split: all its parts were run")
        self._tell_released(there)
        idle = [u for u in self.units if u.role == "own" and u not in kept and not u.binds & set(self.functions)]
        if idle:
            self.notes.append(f"有 {len(idle)} 个自加的单元格答案用不到，没有运行 · "
                              f"{len(idle)} of your own cells are not needed by any answer: they were not run")

    def _tell_released(self, there):
        """What became of the cells that were handed out."""
        titles = {"test": ("检查单元格", "a check cell"), "toolkit": ("课程工具单元格", "the tools cell"),
                  "given": ("给定的单元格", "a given cell"), "demo": ("示例单元格", "a demo cell")}
        before = {t for n, u in there.items() for t in self.functions[n].tests if min(self.places.get(t, [inf])) < u.at}
        for role, (zh, en) in titles.items():
            ids = [cell.cell_id for cell in self.release.cells.values() if cell.role == role]
            end = ("已用原版代替", "the original was used") if role != "demo" else ("不影响成绩", "it does not count")
            for happened, words in (
                (self.changed[role], ("{}被改动过", "{} was changed")),
                (any(not self.seen[one] for one in ids), ("缺少{}", "{} was missing")),
                (any(self.seen[one] > 1 for one in ids), ("{}有重复", "{} was there twice")),
                (before & set(ids), ("{}排在了答案前面", "{} stood before the answer")),
            ):
                if happened:
                    self.notes.append(f"{words[0].format(zh)}，{end[0]} · {words[1].format(en)}: {end[1]}")

    def _note(self, names, zh, en):
        if names:
            labels = self._labels(names)
            self.notes.append(f"{labels}：{zh} · {labels}: {en}")


def _unfenced(source):
    """The code inside Markdown's ``` fences, or the text itself where it has none."""
    blocks = re.findall(r"^```[ \w]*\n(.*?)^```", source, re.M | re.S)
    return "\n".join(blocks) if blocks else source
