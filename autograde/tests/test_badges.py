"""Every badge and link into this repository leads where it says, and learners meet the solutions last."""
import re
import subprocess

import nbformat
import pytest

from autograde import badges, build, git, lint, settings
from autograde.chapter import LANGUAGES, load_chapters
from autograde.paths import ROOT

ADDRESS = re.escape(badges.repository().removeprefix("https://github.com/"))
HERE = re.compile(rf"https://(github\.com|colab\.research\.google\.com/github)/{ADDRESS}/blob/([^/]+)/(.+)")
NOTEBOOKS = [
    pytest.param(chapter, language, id=f"{chapter.name[:3]}-{language}")
    for chapter in load_chapters()
    for language in LANGUAGES
]


def links(notebook):
    """[(number of the cell, site, branch, path)] of all links into this repository."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for url in re.findall(r"https://[^\s)\"'>]+", cell.source):
            if re.search(ADDRESS, url):
                site, branch, path = HERE.fullmatch(url).groups()
                found.append((number, "Colab" if "colab" in site else "GitHub", branch, path))
    return found


def assert_learner(notebook, path):
    assert (ROOT / path).is_file()
    score = max(number for number, cell in enumerate(notebook.cells) if cell.source == "scorecard()")
    assert [link[1:] for link in links(notebook) if link[0] <= score] == [("Colab", "main", path)]
    assert [link[1:] for link in links(notebook) if link[0] > score] == [("GitHub", "solutions", path)]
    assert len(re.findall("答案在解答版里|are in the solved notebook", notebook.cells[0].source)) == 1


def assert_solved(notebook, path):
    assert (ROOT / path).is_file()
    assert {link[1:] for link in links(notebook)} == {("Colab", "main", path), ("GitHub", "main", path)}
    assert not re.search("答案在解答版里|are in the solved notebook", "".join(cell.source for cell in notebook.cells))
    assert links(notebook)[0][0] == 0 and not any("not done yet" in str(cell.get("outputs")) for cell in notebook.cells)


def on_branch(path):
    """The text of a file of the branch `solutions`; None where it was not built from the present commit."""
    reference = f"refs/heads/{settings.SOLUTIONS_BRANCH}"
    parents = [
        subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", name], capture_output=True, check=False)
        for name in (f"{reference}^", "HEAD")
    ]
    if any(parent.returncode for parent in parents) or parents[0].stdout != parents[1].stdout:
        return None
    show = ["git", "-C", ROOT, "show", f"{reference}:{path}"]
    return subprocess.run(show, capture_output=True, check=True, encoding="utf-8").stdout


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_learner_notebook_opens_itself_and_ends_with_its_solved_twin(chapter, language):
    path = badges.notebook_path(chapter.name, language)
    assert path == f"course/{language}/{chapter.name}/{chapter.name}.ipynb"
    assert_learner(nbformat.read(ROOT / path, as_version=4), path)


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_a_solved_notebook_leads_back_and_nowhere_else(chapter, language):
    assert_solved(build.solved_notebook(chapter, language), badges.notebook_path(chapter.name, language))


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
def test_the_notebooks_of_the_solutions_branch_do_not_open_themselves_as_unsolved(chapter, language):
    path = badges.notebook_path(chapter.name, language)
    text = on_branch(path)
    if text is None:
        pytest.skip("the branch `solutions` is not built from this commit")
    assert_solved(nbformat.reads(text, as_version=4), path)


def test_the_readme_s_table_leads_to_the_chapter_and_the_language_of_its_columns():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.split("\n") if "course/zh/" in line]
    assert len(rows) == len(load_chapters())
    for chapter, row in zip(load_chapters(), rows):
        for language, column in zip(LANGUAGES, row[-2:]):
            path = badges.notebook_path(chapter.name, language)
            colab, = re.findall(r"\((https://[^\s)]+/blob/[^\s)]+)\)", column)
            assert HERE.fullmatch(colab).groups()[1:] == ("main", path) and (ROOT / path).is_file()
            assert f"[{language}]({path})" in column
    assert text.count("/blob/") == 2 * len(rows)


def test_mistakes_with_links_are_noticed():
    first, second = load_chapters()[:2]
    path = badges.notebook_path(first.name, "en")
    learner, solved = build.release_notebook(first, "en"), build.solved_notebook(first, "en")
    with pytest.raises(AssertionError):
        assert_learner(solved, path)
    with pytest.raises(AssertionError):
        assert_solved(learner, path)
    for other in (build.release_notebook(first, "zh"), build.release_notebook(second, "en")):
        with pytest.raises(AssertionError):
            assert_learner(other, path)
    learner.cells.insert(1, learner.cells.pop([number for number, *_ in links(learner)][-1]))
    with pytest.raises(AssertionError):
        assert_learner(learner, path)


@pytest.mark.parametrize(("remote", "address"), [
    ("https://github.com/someone/fork.git", "someone/fork"),
    ("git@github.com:someone/fork.git", "someone/fork"),
    ("ssh://git@github.com/someone/fork", "someone/fork"),
    ("ssh://git@ssh.github.com:443/someone/fork.git", "someone/fork"),
    ("https://x-access-token:secret@github.com/someone/fork", "someone/fork"),
    ("https://www.GitHub.com/someone/fork/", "someone/fork"),
    ("https://github.com/someone/fork/extra", "OWNER/REPOSITORY"),
    ("https://notgithub.com/someone/fork", "OWNER/REPOSITORY"),
    ("/somewhere/on/disk", "OWNER/REPOSITORY"),
    ("", "OWNER/REPOSITORY"),
])
def test_the_badges_follow_the_git_remote(monkeypatch, remote, address):
    answer = subprocess.CompletedProcess([], 0, stdout=f"{remote}\n")
    monkeypatch.setattr(git.subprocess, "run", lambda *_, **__: answer)
    cell = badges.filled(badges.BADGES, "x", "zh", solved=False)
    assert f"colab.research.google.com/github/{address}/blob/main/course/zh/x/x.ipynb" in cell
    assert f"github.com/{address}/blob/solutions/course/zh/x/x.ipynb" in badges.filled(
        badges.TWIN, "x", "zh", solved=False
    )


def test_a_repository_around_the_course_and_a_missing_git_are_not_asked(monkeypatch, tmp_path):
    inner = tmp_path / "course"
    inner.mkdir()
    for command in (["init", "-q"], ["remote", "add", "origin", "https://github.com/someone/homework"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(git, "ROOT", tmp_path)
    assert badges.repository().endswith("/someone/homework")
    monkeypatch.setattr(git, "ROOT", inner)
    assert badges.repository() == settings.REPOSITORY
    monkeypatch.setenv("PATH", "")
    assert badges.repository() == settings.REPOSITORY


@pytest.mark.parametrize(("chapter", "language"), NOTEBOOKS)
@pytest.mark.parametrize("make", [build.release_notebook, build.solved_notebook])
def test_the_first_cell_names_both_licences_in_its_language(chapter, language, make):
    line, = re.findall(r"^(?:许可：文字|Licences: text) .*", make(chapter, language).cells[0].source, re.M)
    assert ("许可" in line) == (language == "zh")
    text, code = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", line)
    assert text[0] == "CC BY 4.0" and text[1].startswith("https://creativecommons.org/licenses/by/4.0/")
    assert code == ("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0")


@pytest.mark.parametrize("replace", [
    {"# ## 解答版\n#\n# <!-- solved twin -->": "# ## 解答版"},
    {"# ## Solved version\n#\n# <!-- solved twin -->": "# ## Solved version"},
    {"# # 01 · 加倍\n": "# # 01 · 加倍\n#\n# <!-- solved twin -->\n"},
    {"# %%\nscorecard()\n": "", "# ## Solved version\n#\n# <!-- solved twin -->\n":
     "# ## Solved version\n#\n# <!-- solved twin -->\n\n# %%\nscorecard()\n"},
    {"# %%\nscorecard()\n": ""},
])
def test_a_chapter_whose_link_to_the_solutions_is_not_below_the_scorecard_is_refused(tiny, replace):
    assert lint.problems(tiny()) == []
    assert "below the scorecard, two Markdown cells (zh and en) hold <!-- solved twin -->" in "\n".join(
        lint.problems(tiny(replace))
    )
