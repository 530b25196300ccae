"""Reports: CSV files, learners' pages, the class page and the terminal; nothing of a learner's runs or misleads."""
import base64
import csv
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from browsing import HOSTILE, hard_to_read, headless, watched_page

from autograde import report
from autograde.chapter import Chapter, Todo
from autograde.graded import Graded, Mark, RanCell, Verdict, marks_of

DOUBLE = Todo("T1", "double", ("double",), {"test_double": 2, "test_double_of_zero": 4})
HALVE = Todo("T2", "halve", ("halve",), {"test_halve": 6})
ADD = Todo("T1", "add", ("add",), {"test_add": 3})
NUMBERS = Chapter("01_numbers", Path("01_numbers.py"), (), (DOUBLE, HALVE), ())
SUMS = Chapter("02_sums", Path("02_sums.py"), (), (ADD,), ())
BITS, EDGE = "单位是 bit · bits, not bytes", "边界 · the boundary belongs below"


def wrong(label, hint, call="double(3)", got="9"):
    return Verdict(False, f"[{label}] got {got}, expected 6 : {hint} · {call}")


def ok(label):
    return Verdict(True, f"[{label}] ok")


def graded(verdicts, cells=(), notes=(), problem="", unsafe=False, wall_s=0.5):
    return Graded(verdicts, tuple(cells), tuple(notes), problem, "x.ipynb", unsafe, wall_s)


def result(learner, chapter, one):
    return learner, chapter, marks_of(chapter, learner, one), one


def numbers(learner, main=None, zero=None, halve=None, **more):
    verdicts = {
        "test_double": main or ok("T1"), "test_double_of_zero": zero or ok("T1"), "test_halve": halve or ok("T2")
    }
    return result(learner, NUMBERS, graded(verdicts, **more))


@pytest.fixture
def small_class():
    """Seven submissions: three lose points on T2 (two on the same hint), one on T1, one was never graded."""
    return [
        numbers("ann", halve=wrong("T2", BITS, "halve(1)"), wall_s=9.25),
        numbers("bo", halve=wrong("T2", BITS, "halve(22)", got="' : '")),
        result("bo", SUMS, graded({"test_add": ok("T1")}, notes=["已修复 · repaired <it>"])),
        numbers("王小明", zero=wrong("T1", EDGE), halve=Verdict(False, "[T2] not done yet · 尚未完成")),
        result("dee", NUMBERS, graded({}, problem="dee/x.ipynb: 空文件 · the file is empty")),
        ("eve", None, [Mark("eve", "77", "", 0, 0, "eve/77: no such chapter")], None),
        numbers("fay", unsafe=True),
    ]


def page(folder, learner):
    return (folder / learner / "index.html").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """The tags, addresses and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.handlers, self.addresses, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value for name, value in attrs if name in ("href", "src", "srcset", "action")]

    def handle_endtag(self, tag):
        self.text += " " * (tag in ("td", "th"))

    def handle_data(self, data):
        self.text += data

    @property
    def flat(self):
        return " ".join(self.text.split())


# CSV files

def test_marks_csv_has_the_columns_and_no_formulas(tmp_path):
    report.write_marks_csv([
        Mark("=cmd()", "39b", "handoff", 1.5, 6.0, '@x, "y"'), Mark("-b", "", "", 0, 0, "中文"),
        Mark("＝cmd()", "39b", "handoff", 0, 6, "a\ud800\0b"),
    ], tmp_path / "marks.csv")
    assert (tmp_path / "marks.csv").read_text(encoding="utf-8") == (
        "learner,chapter,todo,points,max_points,reason\n"
        "'=cmd(),39b,handoff,1.5,6,\"'@x, \"\"y\"\"\"\n'-b,,,0,0,中文\n'＝cmd(),39b,handoff,0,6,a[U+D800][U+0000]b\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["marks.csv"]


def rows(path):
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")  # Excel
    return list(csv.reader(data.decode("utf-8-sig").splitlines(keepends=True)))


def test_canvas_csv(tmp_path, small_class):
    report.write_lms_csvs([*small_class, numbers("+1 phone")], tmp_path)
    assert rows(tmp_path / "canvas.csv") == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01_numbers", "02_sums"],
        ["    Points Possible", "", "", "", "", "12", "3"],
        ["ann", "", "", "ann", "", "6", ""],
        ["bo", "", "", "bo", "", "6", "3"],
        ["王小明", "", "", "王小明", "", "2", ""],
        ["dee", "", "", "dee", "", "0", ""],
        ["eve", "", "", "eve", "", "", ""],
        ["fay", "", "", "fay", "", "12", ""],
        ["'+1 phone", "", "", "'+1 phone", "", "12", ""],
    ]


def test_moodle_csv(tmp_path, small_class):
    report.write_lms_csvs([*small_class, numbers("gus", main=wrong("T1", "<b>x</b>"))], tmp_path)
    table = rows(tmp_path / "moodle.csv")
    assert table[0] == [
        "Full name", "Identifier", "Grade 01_numbers", "Feedback comments 01_numbers", "Grade 02_sums",
        "Feedback comments 02_sums",
    ]
    assert table[2] == [
        "bo", "bo", "6", f"[T1] ok\n[T2] got ' : ', expected 6 : {BITS} · halve(22)", "3", "[T1] ok"
    ]
    assert table[4] == ["dee", "dee", "0", "dee/x.ipynb: 空文件 · the file is empty", "", ""]
    assert table[5] == ["eve", "eve", "", "", "", ""]
    assert "&lt;b&gt;x&lt;/b&gt;" in table[7][3]  # Moodle reads it as HTML


# Learners' pages

def test_a_learners_page_shows_points_verdicts_code_prints_and_repairs(tmp_path):
    printed = "".join(f"line {number}\n" for number in range(100))
    cells = [
        RanCell("", "helper_of_double = 1", "", ""), RanCell("double", "def double(n):\n    return 9", "", printed),
        RanCell("halve", "def halve(n): 1/0", "ZeroDivisionError: division by zero (line 1)", ""),
        RanCell("", "the_end = 1", "", ""),
    ]
    one = numbers("王小明", zero=wrong("T1", EDGE), cells=cells, notes=["已取出 · T1: taken out"], unsafe=True)
    report.write_learner_pages([one, result("王小明", SUMS, graded({"test_add": ok("T1")}))], tmp_path)
    flat = Reader(page(tmp_path, "王小明")).flat
    assert "总分 · sum 11 / 15" in flat and "01_numbers 8 / 12" in flat and "02_sums 3 / 3" in flat
    assert "double 2 / 6 [T1] got 9, expected 6 : 边界 · the boundary belongs below · double(3) halve 6 / 6" in flat
    assert "主要 · main 2 ✓ [T1] ok of zero 4 ✗ [T1] got 9" in flat
    before, _, after = flat.partition("T2 · halve")
    assert "helper_of_double" in before and "def double(n): return 9" in before and "line 39 … 已截断" in before
    assert "line 40" not in flat and "the_end" in after.partition("其余代码")[2]
    assert "ZeroDivisionError: division by zero (line 1)" in after
    assert "修复了什么 · what was repaired 已取出 · T1: taken out" in flat
    assert flat.count("graded without a sandbox") == 1 and 'why("T1")' in flat and 'why("T2")' not in flat


def test_what_cannot_be_graded_says_what_to_do(tmp_path, small_class):
    report.write_learner_pages(small_class, tmp_path)
    text = page(tmp_path, "dee")
    assert "the file is empty" in text and "What to do" in text and "怎么办" in text and "0 / 12" in text
    assert text.count("the file is empty") == 1
    assert "eve/77: no such chapter" in page(tmp_path, "eve") and "What to do" in page(tmp_path, "eve")
    assert "What to do" not in page(tmp_path, "bo") and "without a sandbox" not in page(tmp_path, "bo")
    assert "没有找到这个 TODO 的代码" in page(tmp_path, "bo")


def test_points_given_by_hand_show_even_where_nothing_ran(tmp_path):
    broken = graded({}, problem="the file is empty")
    marks = marks_of(NUMBERS, "ann", broken, {"test_halve": 6.0})
    report.write_learner_pages([("ann", NUMBERS, marks, broken)], tmp_path)
    assert "the file is empty" in page(tmp_path, "ann") and "6 / 12" in page(tmp_path, "ann")


@pytest.fixture
def hostile(tmp_path):
    """Pages of learners who put markup wherever they can: (folder of learners' pages, class page, texts)."""
    names = [text.replace("/", "_").replace("\0", "") for text in HOSTILE]
    names = [name.encode("utf-8", "replace").decode() for name in names]
    results = []
    for name, text in zip(names, HOSTILE):
        cells = [RanCell("double", text, text, text), RanCell("", text, text, text)]
        results.append(numbers(name, main=wrong("T1", f"{text} $x$", text, text), halve=Verdict(False, f"[T2] {text}"),
                               cells=cells, notes=[text]))
        results.append(result(name, SUMS, graded({}, problem=text)))
    report.write_learner_pages(results, tmp_path / "feedback")
    report.write_class_page(results, tmp_path / "class.html")
    report.write_lms_csvs(results, tmp_path)
    return tmp_path, names


def test_nothing_of_a_learner_becomes_markup(hostile):
    folder, names = hostile
    plain = Reader(page(folder / "feedback", names[8])).tags
    for name, text in zip(names, HOSTILE):
        read = Reader(page(folder / "feedback", name))
        assert read.tags == plain and read.handlers == [] and read.addresses == [], name
        assert read.text.count(report._clean(text)) >= 9, name  # names, code, prints, errors, notes, verdicts
        assert not re.search("[\0\x1b\u202e\u2066\u200f]", read.text)
    assert "1337" not in page(folder / "feedback", names[5])
    read = Reader((folder / "class.html").read_text(encoding="utf-8"))
    assert not {"script", "svg", "iframe"} & set(read.tags) and read.handlers == []
    assert all(one.startswith(("feedback/", "data:image/svg+xml;base64,")) for one in read.addresses)
    assert read.tags.count("img") == 1 and read.tags.count("meta") == 4


def test_links_of_the_class_page_lead_to_the_learners_pages(hostile):
    folder, names = hostile
    text = (folder / "class.html").read_text(encoding="utf-8")
    links = {one for one in Reader(text).addresses if one.startswith("feedback/")}
    assert len(links) == len(names)
    assert all(os.path.isfile(os.path.join(os.fsencode(folder), unquote_to_bytes(link))) for link in links)


@pytest.mark.slow
def test_pages_run_nothing_and_ask_for_nothing_in_a_browser(hostile):
    folder, names = hostile
    pages = [folder / "class.html", *(folder / "feedback" / name / "index.html" for name in names)]
    with headless() as browser:
        # The pages forbid scripts as well: escaping alone must do.
        with watched_page(browser, bypass_csp=True) as (tab, complaints, outside):
            for path in pages:
                tab.goto(path.as_uri())
                for link in tab.query_selector_all("summary"):
                    link.click()
                assert tab.evaluate("window.__pwned") is None, path
                assert tab.evaluate("document.scripts.length") == 0 and tab.url == path.as_uri()
            assert complaints == [] and outside == []
            # The check itself can fail: a page with a script and a picture of its own is noticed.
            tab.set_content(HOSTILE[0] + HOSTILE[6])
            assert tab.evaluate("window.__pwned") == 1 and outside == ["https://example.org/"]
        for scheme in ("light", "dark"):
            with watched_page(browser, color_scheme=scheme) as (tab, complaints, _):
                for path in pages:
                    tab.goto(path.as_uri())
                    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
                    assert hard_to_read(tab, "body") == [], (scheme, path)
                assert complaints == []
                tab.set_content("<body style='background: #fff'><p style='color: #777'>grey</p>")
                assert hard_to_read(tab, "body") == [[4.48, "P", "grey"]]


# The class page

def test_failures_are_counted_by_todo_and_hint(small_class):
    assert report.count_failing(small_class) == [
        ("01_numbers", "T2", "halve", 4, 3, [(BITS, 2), ("not done yet · 尚未完成", 1)]),
        ("01_numbers", "T1", "double", 4, 1, [(EDGE, 1)]),
        ("02_sums", "T1", "add", 1, 0, []),
    ]


@pytest.mark.parametrize(("line", "hint"), [
    (f"[T1] got 1, expected 2 : {BITS} · double(3)", BITS),
    (f"[T1] got ' : x', expected 2 : {BITS} · double(3) · 完整报错 the whole error: why(\"T1\")", BITS),
    (f"[T1] got another answer, expected the stated rule : {EDGE} · hidden checks · 隐藏检查, seed 7", EDGE),
    ("[T1] 语法错误，没有运行 · a syntax error, not run", "语法错误，没有运行 · a syntax error, not run"),
])
def test_the_hint_of_a_verdict_line(line, hint):
    assert report.hint_of(DOUBLE, line) == hint


def test_the_plot_draws_these_counts(small_class):
    figure = report.failing_figure(report.count_failing(small_class), "#000000", "#111111", "#222222")
    (axes,) = figure.axes
    drawn = [(label.get_text(), bar.get_width()) for label, bar in zip(axes.get_yticklabels(), axes.patches)]
    assert drawn == [
        ("01 T2 halve", 3), ("bits, not bytes", 2), ("not done yet", 1), ("01 T1 double", 1),
        ("the boundary belongs below", 1), ("02 T1 add", 0),
    ]
    assert [text.get_text() for text in axes.texts] == ["3", "2", "1", "1", "1", "0"]


def test_the_class_page(tmp_path, small_class):
    report.write_class_page(small_class, tmp_path / "class.html")
    text = (tmp_path / "class.html").read_text(encoding="utf-8")
    flat = Reader(text).flat
    assert "6 人 · learners, 7 份提交 · submissions" in flat
    assert "bo 6 0 6 3 3 9" in flat and "ann 6 0 6 – – 6" in flat and "王小明 2 0 2 – – 2" in flat
    assert "1 submissions were graded without a sandbox" in flat
    assert "5 份 · submissions, 平均 · mean 5.2, 中位数 · median 6, 满分 · full marks 1 / 5 (max 12)" in flat
    assert "0 1 1 0 2 1 3 0 4 0 5 0 6 2 7 0" in flat  # points and how many have them
    assert f"01 T2 halve 3 / 4 2 {BITS} 1 not done yet" in flat and "02 T1 add 0 / 1" in flat
    assert re.search(r"could not be graded 2 .*dee 01_numbers dee/x.ipynb: 空文件.*eve 77 eve/77: no such", flat)
    assert re.search(r"repaired 1 .*bo 02_sums 已修复 · repaired <it>", flat)
    assert "秒 · seconds ann 01_numbers 9.25 bo" in flat
    alt = re.search('alt="([^"]*)"', text)[1]
    assert "Most on 01 T2 halve: 3 of 4, 2 of them on: bits, not bytes." in alt
    pictures = re.findall("data:image/svg[+]xml;base64,([^\"]*)", text)
    assert len(pictures) == 2 and all(b"</svg>" in base64.b64decode(one) for one in pictures)


def test_rare_hints_are_summed_up(tmp_path):
    results = [
        numbers(f"learner-{number}-{copy}", halve=Verdict(False, f"[T2] NameError: name 'x{number}'"))
        for number in range(7) for copy in range(8 - number)
    ]
    report.write_class_page(results, tmp_path / "class.html")
    flat = Reader((tmp_path / "class.html").read_text(encoding="utf-8")).flat
    assert "01 T2 halve 35 / 35 8 NameError: name 'x0'" in flat
    assert "4 NameError: name 'x4' 5 其他 · others 01 T1 double 0 / 35" in flat


def test_a_class_with_full_marks_or_no_submission_has_a_page_without_a_plot(tmp_path):
    for results in ([numbers("ann")], []):
        report.write_class_page(results, tmp_path / "class.html")
        text = (tmp_path / "class.html").read_text(encoding="utf-8")
        assert "nobody lost points" in text and "<img" not in text


def test_scores_by_hand_outside_the_scale_stay_in_the_distribution(tmp_path):
    report.write_class_page([
        ("ann", SUMS, [Mark("ann", SUMS.name, "add", points, 3, "[T1] ok")], graded({})) for points in (5, 2.5, -1)
    ], tmp_path / "class.html")
    flat = Reader((tmp_path / "class.html").read_text(encoding="utf-8")).flat
    assert "0 1 1 0 2 1 3 1 哪个" in flat  # points and how many have them


# The terminal

def test_the_table_shows_sums_and_what_was_not_graded(capsys, small_class):
    marks = [mark for _, _, theirs, _ in small_class for mark in theirs]
    report.print_table([*marks, *numbers("[red]gus\x1b[2J")[2]], report.not_graded(small_class))
    out = capsys.readouterr().out
    assert "[red]gus[U+001B][2J" in out and "8/12" not in out and "12/12" in out and "6/12" in out and "3/3" in out
    assert "not graded: dee 01_numbers: dee/x.ipynb: 空文件 · the file is empty\n" in out
    assert "not graded: eve 77: eve/77: no such chapter\n" in out and out.count("not graded") == 2


def test_verdict_lines_are_printed_with_points_and_sum(capsys):
    report.print_verdicts(numbers("ann", halve=Verdict(False, "[T2] got 'a\x1b[2J\ud800\nb'"))[2])
    assert capsys.readouterr().out == (
        "6/6 double: [T1] ok\n0/6 halve: [T2] got 'a[U+001B][2J[U+D800] b'\n6/12\n"
    )


def test_points_taken_away_by_hand_are_told():
    passed = graded({test_id: ok(todo.label) for todo in NUMBERS.todos for test_id in todo.tests})
    marks = marks_of(NUMBERS, "ann", passed, {"test_double": 1.0})
    assert (marks[0].points, marks[0].reason) == (NUMBERS.todos[0].points - NUMBERS.todos[0].tests["test_double"] + 1,
                                                 "[T1] 人工评分 · graded by hand")
