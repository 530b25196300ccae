"""Whatever an instructor is given: every submission is found, nothing is followed, written or raised."""

import hashlib
import io
import json
import os
import struct
import zipfile

import pytest

from autograde import intake, reading, unpack
from autograde.errors import InputError
from autograde.tests.repairing import CHAPTERS, NO_BANK, mangle, notebooks

A, B = (CHAPTERS[key].name for key in ("39a", "39b"))
SOLVED = {name: json.dumps(notebooks(name[:3])[1], ensure_ascii=False).encode() for name in (A, B)}
BANK, ATTACKS = mangle(), mangle("attack")


def zipped(files, **options):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def found(folder, files, **options):
    """Write the files below a folder and find the submissions: {(learner, chapter): Submission}."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return by_learner(folder, **options)


def by_learner(path, **options):
    submissions = intake.find_submissions(path, chapters=list(CHAPTERS.values()), **options)
    result = {(one.learner, one.chapter): one for one in submissions}
    assert len(result) == len(submissions)
    return result


# ---- what instructors download

GRADESCOPE = b"""---
submission_101:
  :submitters:
  - :name: Ada Lovelace
    :sid: '7001'
    :email: ada@example.com
  :created_at: 2024-03-01 10:00:00.000000000 Z
  :score: 0.0
  :results: !ruby/hash:ActiveSupport::HashWithIndifferentAccess {}
submission_102:
  :submitters:
  - :name: "\xe5\xbc\xa0\xe4\xb8\x89"
    :sid: '7002'
  - :name: Alan Turing
    :sid: '7003'
"""
LAYOUTS = {
    "nbgrader": (
        {
            f"submitted/ann/{A}/{A}.ipynb": A,
            f"submitted/ann/{B}/{B}.ipynb": B,
            f"submitted/bo/{B}/{B}.ipynb": B,
            f"source/{A}/{A}.ipynb": A,
            f"submitted/bo/{B}/timestamp.txt": b"2024",
        },
        {("ann", A), ("ann", B), ("bo", B)},
    ),
    "nbgrader without submitted": ({f"ann/{A}/{A}.ipynb": A, f"bo/{B}/deep/er/x.ipynb": B}, {("ann", A), ("bo", B)}),
    "nbgrader exchange": (
        {
            f"ann+{A}+2024-01-01 10:00:00.000000 UTC+x/{A}.ipynb": A,
            f"ann+{A}+2024-01-02 10:00:00.000000 UTC+y/{A}.ipynb": A + "2",
        },
        {("ann", A)},
    ),
    "canvas": (
        {
            "lovelaceada_12345_67890_hw.ipynb": A,
            "turingalan_LATE_222_333_Copy of x-1.ipynb": B,
            "张三_444_555_39b (1).ipynb": B,
        },
        {("lovelaceada", A), ("turingalan", B), ("张三", B)},
    ),
    "canvas, one name and two people": (
        {"wangwei_1_67890_hw.ipynb": A, "wangwei_2_67891_hw.ipynb": A},
        {("wangwei (1)", A), ("wangwei (2)", A)},
    ),
    "moodle": (
        {
            "Ada Lovelace_12345_assignsubmission_file_/x.ipynb": A,
            "王 伟_1_assignsubmission_file/39b.ipynb": B,
            "王 伟_2_assignsubmission_file_/39b.ipynb": B,
        },
        {("Ada Lovelace", A), ("王 伟 (1)", B), ("王 伟 (2)", B)},
    ),
    "moodle without folders": ({"Ada Lovelace_12345_assignsubmission_file_my.ipynb": A}, {("Ada Lovelace", A)}),
    "gradescope": (
        {
            "assignment_9_export/submission_metadata.yml": GRADESCOPE,
            "assignment_9_export/submission_101/x.ipynb": A,
            "assignment_9_export/submission_102/homework.ipynb": B,
            "assignment_9_export/submission_103/y.ipynb": B,
        },
        {("Ada Lovelace", A), ("张三", B), ("Alan Turing", B), ("submission_103", B)},
    ),
    "flat": (
        {f"ann_{A}.ipynb": A, f"ann_{B}.ipynb": B, "li_si_39b.ipynb": B, "Copy of bo_39a (1).ipynb": A},
        {("ann", A), ("ann", B), ("li_si", B), ("bo", A)},
    ),
    "flat, named after an assignment": ({"zhang_hw.ipynb": A, "wang_hw.ipynb": B}, {("zhang", A), ("wang", B)}),
    "flat, nothing in common": (
        {"zhang_san_x.ipynb": A, "zhang_wei_y.ipynb": B},
        {("zhang_san_x", A), ("zhang_wei_y", B)},
    ),
    "learners' zips": (
        {"ann.zip": zipped({f"{A}.ipynb": SOLVED[A]}), "bo.zip": zipped({"d/x.ipynb": SOLVED[B]})},
        {("ann", A), ("bo", B)},
    ),
    "canvas zip in a folder": (
        {
            "submissions.zip": zipped(
                {"lovelaceada_1_2_hw.zip": zipped({"hw/x.ipynb": SOLVED[A]}), "turing_3_4_x.ipynb": SOLVED[B]}
            )
        },
        {("lovelaceada", A), ("turing", B)},
    ),
}


@pytest.mark.parametrize("as_zip", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, name, as_zip):
    layout, want = LAYOUTS[name]
    files = {
        path: SOLVED.get(what, SOLVED[A] + b"\n") if isinstance(what, str) else what for path, what in layout.items()
    }
    if as_zip:
        (tmp_path / "class.zip").write_bytes(zipped(files))
        result = by_learner(tmp_path / "class.zip")
    else:
        result = found(tmp_path, files)
    assert set(result) == want
    for submission in result.values():
        assert submission.candidates and all(len(one.cells) > 10 and not one.problem for one in submission.candidates)


def test_two_files_of_one_learner_are_two_candidates_and_said(tmp_path):
    result = found(
        tmp_path,
        {
            f"ann/{A}/one.ipynb": SOLVED[A],
            f"ann/{A}/two.ipynb": SOLVED[A] + b"\n",
            "ann.zip": zipped({"three.ipynb": SOLVED[A] + b" "}),
        },
    )
    (submission,) = result.values()
    assert [one.name for one in submission.candidates] == [
        f"ann/{A}/one.ipynb",
        f"ann/{A}/two.ipynb",
        "ann.zip/three.ipynb",
    ]
    assert "3 files were handed in, the better counts" in submission.problems[0]


def test_late_in_canvas_is_said_to_the_learner(tmp_path):
    (submission,) = found(tmp_path, {"turing_LATE_1_2_x.ipynb": SOLVED[A]}).values()
    assert submission.candidates[0].notes[0].endswith("handed in late, says Canvas")


def test_the_learner_may_be_told(tmp_path):
    result = found(tmp_path, {f"{A}.ipynb": SOLVED[A], "sub/x.ipynb": SOLVED[B]}, learner="李雷")
    assert set(result) == {("李雷", A), ("李雷", B)}


def test_no_such_path(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        intake.find_submissions(tmp_path / "nothing")


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        f"{A}.ipynb",
        f"Copy of {A}.ipynb",
        f"{A} (1).ipynb",
        f"{A}（2）.ipynb",
        f"{A}.ipynb.txt",
        f"{A}.ipynb.json",
        f"{A}.IPYNB",
        f"{A}-Copy1.ipynb",
        f"{A}.json",
        f"{A}",
        f"{A}.ipynb (1)",
        "homework/x.ipynb",
        "作业/张三 作业（最终版）.ipynb",
        "a b/c d/e.ipynb",
        "-rf.ipynb",
        "x'; drop table.ipynb",
        "<b>.ipynb",
        f"{A}.txt",
        "x.ipynb.ipynb",
        f"{A} 副本.ipynb",
        "📓.ipynb",
    ],
)
def test_any_name_is_found(tmp_path, name):
    assert set(found(tmp_path, {f"li/{name}": SOLVED[A]})) == {("li", A)}


def test_junk_beside_the_notebook_is_ignored(tmp_path):
    junk = [
        ".ipynb_checkpoints/a-checkpoint.ipynb",
        "__MACOSX/._a.ipynb",
        "._a.ipynb",
        "Thumbs.db",
        ".DS_Store",
        "d/.ipynb_checkpoints/b.ipynb",
        "__pycache__/x.py",
        ".git/x.ipynb",
    ]
    (submission,) = found(
        tmp_path, {f"li/{name}": SOLVED[A][:-9] for name in junk} | {"li/a.ipynb": SOLVED[A]}
    ).values()
    assert len(submission.candidates) == 1 and submission.problems == ()


def test_a_single_file_and_a_single_zip(tmp_path):
    assert set(found(tmp_path / "li", {f"{A}.ipynb": SOLVED[A]})) == {("li", A)}
    assert set(by_learner(tmp_path / "li" / f"{A}.ipynb")) != set()
    path = tmp_path / "hanmei.zip"
    path.write_bytes(zipped({f"{A}.ipynb": SOLVED[A]}))
    assert set(by_learner(path)) == {("hanmei", A)}


@pytest.mark.parametrize(
    "files, want, words",
    [
        ({"README.txt": "忘了".encode()}, None, "no notebook was found, only: li/README.txt"),
        ({f"{A}.ipynb": b""}, A, "the file is empty"),
        ({f"{A}.ipynb": b"\0" * 999}, A, "the file is empty"),
        ({f"{A}/x.ipynb": SOLVED[A][:20_000]}, A, "cut off"),
        ({f"{A}/x.ipynb": b"<!DOCTYPE html><html>login</html>"}, A, "a web page, not a notebook"),
        ({f"{A}/x.ipynb": b'{\n<<<<<<< HEAD\n"a": 1\n=======\n>>>>>>> x\n}'}, A, "git conflict"),
        ({f"{A}/x.ipynb": b'{"a": 1}'}, A, "no cells"),
        ({f"{A}/x.ipynb": b"[1, 2]"}, A, "no cells"),
        ({f"{A}/x.ipynb": b'{"cells": [' + b"[" * 100_000}, A, "nested too deeply"),
        ({f"{A}/x.ipynb": b'{"cells": ' + b"9" * 9_000 + b"}"}, A, "not a valid notebook"),
        ({f"{A}/x.ipynb": b"\xff\x00\x81 \xfe"}, A, ""),
        ({f"{A}/x.ipynb": json.dumps({"cells": [{}] * 2_001}).encode()}, A, "too many cells"),
        ({f"{A}/x.ipynb": json.dumps({"cells": [{"source": "x" * 2_000_001}]}).encode()}, A, "too much text"),
        ({f"{A}.html": b"<html>"}, A, "a .html cannot be graded"),
        ({f"{A}.rar": b"Rar!"}, A, "a .rar cannot be graded"),
        ({f"{A}.pdf": b"%PDF"}, A, "a .pdf cannot be graded"),
        ({"work.ipynb": json.dumps({"cells": []}).encode()}, None, ""),
    ],
)
def test_what_cannot_be_read_is_reported_and_kept(tmp_path, files, want, words):
    (submission,) = found(tmp_path, {f"li/{name}": data for name, data in files.items()}).values()
    assert (submission.learner, submission.chapter) == ("li", want)
    said = [*submission.problems, *(one.problem for one in submission.candidates)]
    assert any(words in line for line in said)
    assert all("\n" not in line and " · " in line for line in said if line)


# ---- bytes


@pytest.mark.parametrize(
    "encode",
    [
        lambda t: t.encode("utf-8-sig"),
        lambda t: t.encode("utf-16"),
        lambda t: t.encode("utf-16-le"),
        lambda t: t.encode("utf-16-be"),
        lambda t: b"\xfe\xff" + t.encode("utf-16-be"),
        lambda t: t.encode("gb18030"),
        lambda t: t.replace("\n", "\r\n").encode(),
        lambda t: t.replace('\\n",', '\\r\\n",').encode(),
        lambda t: t.replace("\n", "\r").encode(),
        lambda t: t.encode("utf-32"),
    ],
    ids=range(10),
)
def test_encodings(encode):
    text = json.dumps(notebooks("39a")[1], ensure_ascii=False, indent=1)
    cells, _ = reading.read("x.ipynb", encode(text))
    plain, notes = reading.read("x.ipynb", text.encode())
    assert cells == plain and len(cells) > 10 and notes == ()


def test_an_encoding_is_said():
    _, notes = reading.read("x.ipynb", SOLVED[A].decode().encode("gb18030"))
    assert notes == ("文件编码是 gb18030，已转换 · the file was in gb18030: it was converted",)


def test_hostile_fields_become_text_or_nothing():
    raw = {
        "cells": [
            {
                "cell_type": ["x"],
                "source": [1, "a", None, "\ud800\0b"],
                "id": 7,
                "metadata": {"nbgrader": {"grade_id": 5}},
            },
            "no cell",
            {"cell_type": "code", "input": "c\r\nd", "metadata": []},
        ]
    }
    cells, _ = reading.read("x.ipynb", json.dumps(raw).encode())
    assert [(cell.kind, cell.source, cell.grade_id, cell.cell_id) for cell in cells] == [
        ("markdown", "a?b", "", ""),
        ("code", "c\nd", "", ""),
    ]


# ---- which chapter


def test_what_is_inside_counts_more_than_the_names(tmp_path):
    assert set(found(tmp_path, {f"li/{A}/{A}.ipynb": SOLVED[B]})) == {("li", B)}


@pytest.mark.parametrize(
    "loss",
    [
        lambda cell: cell.update(metadata={}),
        lambda cell: cell.pop("id"),
        lambda cell: cell.update(metadata={}, id="x"),
        lambda cell: cell.update(source=["".join(cell["source"]).replace("summarize_inference_tiers", "summary")]),
    ],
)
def test_the_chapter_is_told_without_names(tmp_path, loss):
    notebook = notebooks("39a")[1]
    for cell in notebook["cells"]:
        loss(cell)
    assert set(found(tmp_path, {"li/x.ipynb": json.dumps(notebook).encode()})) == {("li", A)}


def test_a_module_of_the_learner_is_no_candidate(tmp_path):
    (submission,) = found(
        tmp_path, {"li/x.ipynb": SOLVED[A], "li/helper.py": b"X = 1", "li/ipykernel_launcher.py": b"1/0"}
    ).values()
    assert [one.name for one in submission.candidates] == ["li/x.ipynb"]


def test_one_file_may_hold_nothing_of_the_course(tmp_path):
    scratch = json.dumps({"cells": [{"cell_type": "code", "source": "1/0"}]}).encode()
    result = found(tmp_path, {f"li/{A}/x.ipynb": SOLVED[A], f"li/{A}/Untitled.ipynb": scratch})
    assert [one.name for one in result["li", A].candidates] == [f"li/{A}/x.ipynb"]
    assert result["li", A].problems == (
        f"li/{A}/Untitled.ipynb：不属于任何章节，没有评分 · belongs to no chapter: not graded",
    )


# ---- refused


def test_links_pipes_and_unreadable_files_are_refused_and_said(tmp_path):
    (tmp_path / "secret.ipynb").write_bytes(SOLVED[A])
    learner = tmp_path / "class" / "li"
    learner.mkdir(parents=True)
    (learner / f"{A}.ipynb").symlink_to(tmp_path / "secret.ipynb")
    (learner / "folder").symlink_to(tmp_path)
    (learner / "loop").symlink_to(learner)
    (learner / "etc.txt").symlink_to("/etc/passwd")
    os.mkfifo(learner / "pipe.ipynb")
    (submission,) = by_learner(tmp_path / "class").values()
    assert (submission.learner, submission.chapter, submission.candidates) == ("li", A, ())
    assert sum("a symbolic link" in line for line in submission.problems) == 4
    assert sum("a pipe or device" in line for line in submission.problems) == 1


def test_paths_out_of_an_archive_are_refused_and_nothing_is_written(tmp_path):
    names = ["../../out.ipynb", "/abs.ipynb", "C:\\win.ipynb", "a/../../b.ipynb", "..\\..\\c.ipynb"]
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = 0o120777 << 16
    data = io.BytesIO(zipped({name: SOLVED[A] for name in names} | {f"{A}.ipynb": SOLVED[B]}))
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "li.zip").write_bytes(data.getvalue())
    before = sorted(tmp_path.rglob("*"))
    (submission,) = by_learner(tmp_path / "in").values()
    assert (submission.chapter, len(submission.candidates)) == (B, 1)
    assert sum("a path out of the zip" in line for line in submission.problems) == len(names)
    assert sum("a link or device" in line for line in submission.problems) == 1
    assert sorted(tmp_path.rglob("*")) == before


def _lying_size(data):
    """A zip whose directory says that its first file has 10 bytes."""
    place = data.rindex(b"PK\x01\x02")
    return data[: place + 24] + struct.pack("<I", 10) + data[place + 28 :]


def _encrypted(data):
    place, first = data.rindex(b"PK\x01\x02"), data.index(b"PK\x03\x04")
    data = bytearray(data)
    data[place + 8] |= 1
    data[first + 6] |= 1
    return bytes(data)


BOMBS = {
    "one huge file": (lambda: zipped({"x.ipynb": b"0" * 101_000_000}), "unpacks to too much"),
    "many files": (lambda: zipped({f"{n}": b"" for n in range(600)}), "unpacks to too much"),
    "zips in zips": (
        lambda: zipped({"a.zip": zipped({"b.zip": zipped({"c.zip": zipped({"x.ipynb": SOLVED[A]})})})}),
        "zips inside",
    ),
    "size is a lie": (lambda: _lying_size(zipped({"x.ipynb": SOLVED[A]})), "cannot be read"),
    "password": (lambda: _encrypted(zipped({"x.ipynb": SOLVED[A]})), "it has a password"),
    "cut off": (lambda: zipped({"x.ipynb": SOLVED[A]})[:-99], "cannot be opened"),
    "deep folders": (lambda: zipped({"d/" * 30 + "x.ipynb": SOLVED[A]}), "folders too deep"),
    "not a zip": (lambda: b"PK\x03\x04" + b"junk" * 99, "cannot be opened"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_archives_beyond_a_limit_are_refused_and_the_class_goes_on(tmp_path, monkeypatch, name):
    monkeypatch.setattr(unpack, "MOST_FILES", 500)
    make, words = BOMBS[name]
    result = found(tmp_path, {"li.zip": make(), "ann.zip": zipped({"x.ipynb": SOLVED[A]})})
    assert set(result) == {("li", None), ("ann", A)}
    assert any(words in line for line in result["li", None].problems), result["li", None].problems


def test_a_large_file_is_refused_and_a_notebook_with_much_output_is_not(tmp_path, monkeypatch):
    notebook = notebooks("39a")[1]
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["loss 0.1\n" * 3_000_000]}]
    data = json.dumps(notebook).encode()
    assert set(found(tmp_path, {"li/x.ipynb": data, "bo.zip": zipped({"x.ipynb": data})})) == {("li", A), ("bo", A)}
    monkeypatch.setattr(unpack, "LARGEST_FILE", 1_000_000)
    assert {(s.learner, s.chapter) for s in by_learner(tmp_path).values()} == {("li", None), ("bo", None)}


@pytest.mark.parametrize("encoding", ["gbk", "utf-8"])
def test_chinese_names_in_zips_that_do_not_say_their_encoding(tmp_path, encoding):
    plain = "张三作业".encode(encoding)
    stand_in = "x" * len(plain)
    data = zipped({f"{stand_in}/{A}.ipynb": SOLVED[A]}).replace(stand_in.encode(), plain)
    (tmp_path / "class.zip").write_bytes(data)
    assert set(by_learner(tmp_path / "class.zip")) == {("张三作业", A)}


# ---- names of learners


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "con", "", "..", "张 三", "a" * 200, "x\n<script>", "-rf", "\ud800", "Ä"]
)
def test_a_safe_folder_name(name):
    safe = intake.safe_name(name)
    assert safe and len(safe) <= 50 and not set(safe) & set('/\\.<>:\n "|?*') and safe[0] != "-"
    assert safe.encode()
    assert safe != intake.safe_name(name + "!") != intake.safe_name(name + "?")


def test_plain_names_stay_as_they_are():
    assert [intake.safe_name(name) for name in ("ann", "zhang_san-2", "张三")] == ["ann", "zhang_san-2", "张三"]


@pytest.mark.skipif(ATTACKS is None, reason=NO_BANK)
@pytest.mark.parametrize("name", ATTACKS.CASES if ATTACKS else [])
def test_hostile_submissions_are_taken_in_without_following_or_writing(tmp_path, name):
    options = BANK.Options([todo.grade_id for todo in CHAPTERS["39b"].todos], filename=f"{B}.ipynb")
    case = ATTACKS.CASES[name](*notebooks("39b"), options)
    ATTACKS.write_all({name: case}, tmp_path / "class")
    (tmp_path / "class" / "expected.json").unlink()

    def state():
        return [
            (path, hashlib.sha256(path.read_bytes()).digest())
            for path in sorted(tmp_path.rglob("*"))
            if path.is_file() and not path.is_symlink()
        ]

    before = state()
    (submission,) = by_learner(tmp_path / "class").values()
    assert state() == before
    assert (submission.learner, submission.chapter) == (name, B)
    assert len(submission.candidates) == (0 if name == "symlink_classmate" else 1)
    assert bool(case.links or name == "zip_slip") == bool(submission.problems)
