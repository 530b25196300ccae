"""The branch `solutions`: what it holds, that nothing else changes, that a rerun repeats it, and who is refused."""
import itertools
import json
import subprocess

import nbformat
import pytest
from conftest import TINY

from autograde import badges, build, chapter, solutions_branch
from autograde import git as git_module
from autograde.__main__ import main

CHINESE, ENGLISH = (f"course/{language}/01_doubling/01_doubling.ipynb" for language in ("zh", "en"))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with the tiny chapter, built and committed; returns a function that calls git in it."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    root = (tmp_path / "repository").resolve()
    (root / "solutions").mkdir(parents=True)
    monkeypatch.setattr(chapter, "SOLUTIONS", root / "solutions")
    monkeypatch.setattr(solutions_branch, "ROOT", root)
    monkeypatch.setattr(git_module, "ROOT", root)

    def git(*arguments):
        command = ["git", "-C", root, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch", "main")
    git("config", "user.name", "Ada")
    git("config", "user.email", "ada@example.org")
    write(root, git, TINY)
    return git


def write(root, git, script):
    """Write the chapter's script, build the learner notebooks, commit all."""
    (root / "solutions" / "01_doubling.py").write_text(script, encoding="utf-8")
    for made in chapter.load_chapters():
        for language in chapter.LANGUAGES:
            path = root / badges.notebook_path(made.name, language)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(build.text(build.release_notebook(made, language)), encoding="utf-8")
    git("add", "--all")
    git("commit", "--quiet", "--message", "A change")


@pytest.fixture
def runs(monkeypatch):
    """Stands in for kernels: every run prints another number. The list of first cells of what was run."""
    seen, numbers = [], itertools.count()

    def executed(notebook, folder):
        seen.append(notebook.cells[0].source.split("\n")[0])
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [nbformat.v4.new_output("stream", text=f"run {next(numbers)}\n")]
                cell.execution_count = 1
        return notebook

    monkeypatch.setattr(build, "executed", executed)
    return seen


def everything(git):
    """All that the command must leave alone: refs but its own, HEAD, the index, the work tree."""
    refs = [line for line in git("for-each-ref").split("\n") if not line.endswith("refs/heads/solutions")]
    files = sorted(path for path in solutions_branch.ROOT.rglob("*") if path.is_file() and ".git" not in path.parts)
    index = solutions_branch.ROOT / ".git" / "index"
    return refs, git("rev-parse", "HEAD"), index.read_bytes(), [(path, path.read_bytes()) for path in files]


def test_one_commit_on_top_holds_the_same_tree_with_solved_notebooks(repository, runs, capsys):
    git = repository
    git("branch", "other")
    before = everything(git)
    assert main(["solutions-branch"]) == 0
    assert everything(git) == before and git("status", "--porcelain") == ""
    assert git("rev-list", "main..refs/heads/solutions").count("\n") == 0
    assert git("rev-parse", "refs/heads/solutions^@") == git("rev-parse", "main")
    assert git("diff", "--name-status", "main", "refs/heads/solutions", "--") == f"M\t{ENGLISH}\nM\t{CHINESE}"
    assert git("log", "-1", "--format=%an %ae %cn", "refs/heads/solutions", "--") == "Ada ada@example.org Ada"
    notebook = nbformat.reads(git("show", f"refs/heads/solutions:{CHINESE}"), as_version=4)
    assert "加倍就是自己加自己" in git("show", f"refs/heads/solutions:{CHINESE}")
    assert [cell.outputs[0].text for cell in notebook.cells if cell.cell_type == "code"] == [
        f"run {number}\n" for number in range(4)
    ]
    assert "/blob/main/" in notebook.cells[0].source and "/blob/solutions/" not in str(notebook)
    assert git("rev-parse", "--short=10", "refs/heads/solutions") in capsys.readouterr().out


def test_a_rerun_changes_nothing_and_runs_nothing(repository, runs, capsys):
    assert main(["solutions-branch"]) == 0
    first, _ = repository("rev-parse", "refs/heads/solutions"), runs.clear()
    assert main(["solutions-branch"]) == 0
    assert repository("rev-parse", "refs/heads/solutions") == first and runs == []
    assert "up to date" in capsys.readouterr().out


def test_the_outputs_of_the_published_branch_are_kept_too(repository, runs):
    assert main(["solutions-branch"]) == 0
    first = repository("rev-parse", "refs/heads/solutions")
    repository("update-ref", "refs/remotes/origin/solutions", first)
    repository("update-ref", "-d", "refs/heads/solutions")
    runs.clear()
    assert main(["solutions-branch"]) == 0
    assert repository("rev-parse", "refs/heads/solutions") == first and runs == []


def test_only_what_changed_is_run_again(repository, runs):
    assert main(["solutions-branch"]) == 0
    notebooks = repository("rev-parse", "refs/heads/solutions:course")
    runs.clear()
    (solutions_branch.ROOT / "README.md").write_text("new")
    write(solutions_branch.ROOT, repository, TINY)
    assert main(["solutions-branch"]) == 0
    assert runs == [] and repository("rev-parse", "refs/heads/solutions:course") == notebooks
    assert repository("rev-parse", "refs/heads/solutions^") == repository("rev-parse", "main")
    write(solutions_branch.ROOT, repository, TINY.replace("adding a number to itself", "adding it to itself"))
    chinese, english = (repository("rev-parse", f"refs/heads/solutions:{path}") for path in (CHINESE, ENGLISH))
    assert main(["solutions-branch"]) == 0
    assert runs == ["# 01 · Doubling"]
    assert repository("rev-parse", f"refs/heads/solutions:{CHINESE}") == chinese
    assert repository("rev-parse", f"refs/heads/solutions:{ENGLISH}") != english
    runs.clear()
    write(solutions_branch.ROOT, repository, TINY.replace('(9, "squared")', '(9, "a square")'))  # the cell's id stays
    assert main(["solutions-branch"]) == 0
    assert runs == ["# 01 · 加倍", "# 01 · Doubling"]


def cleared(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nbformat.writes(notebook)


def failed(notebook):
    notebook.cells[-2].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    assert notebook.cells[-2].cell_type == "code"
    return nbformat.writes(notebook)


def gone(notebook):
    return "no notebook"


@pytest.mark.parametrize("break_it", [cleared, failed, gone])
def test_a_notebook_that_somebody_cleared_or_broke_there_is_run_again(repository, runs, break_it):
    assert main(["solutions-branch"]) == 0
    runs.clear()
    repository("checkout", "--quiet", "refs/heads/solutions")
    path = solutions_branch.ROOT / ENGLISH
    path.write_text(break_it(nbformat.read(path, as_version=4)), encoding="utf-8")
    repository("commit", "--quiet", "--all", "--message", "Broken")
    repository("update-ref", "refs/heads/solutions", "HEAD")
    repository("checkout", "--quiet", "main")
    assert main(["solutions-branch"]) == 0
    assert runs == ["# 01 · Doubling"]


def staged(git, root):
    (root / "README.md").write_text("new")
    git("add", "README.md")


def changed(git, root):
    (root / "solutions" / "01_doubling.py").open("a").write("\n")


def untracked(git, root):
    git("config", "status.showUntrackedFiles", "no")
    (root / "notes.txt").write_text("new")


def nobody(git, root):
    git("config", "--unset", "user.email")


def detached(git, root):
    git("checkout", "--quiet", "--detach")


def here(git, root):
    git("checkout", "--quiet", "-b", "solutions")


def there(git, root):
    git("worktree", "add", "--quiet", "-b", "solutions", root.parent / "elsewhere")


def in_the_way(git, root):
    git("branch", "solutions/old")


def foreign_name(git, root):
    (root / b"caf\xe9.txt".decode(errors="surrogateescape")).write_text("new")


def no_repository(git, root):
    (root / ".git").rename(root.parent / "kept")


def inside_another(git, root):
    no_repository(git, root)
    subprocess.run(["git", "init", "--quiet", root.parent], check=True)


def not_built(git, root):
    git("rm", "--quiet", CHINESE)
    git("commit", "--quiet", "--message", "Gone")


@pytest.mark.parametrize(("spoil", "message"), [
    (staged, "1 changed or untracked files, the first: A  README.md; expected a clean checkout"),
    (changed, "the first: M solutions/01_doubling.py; expected a clean checkout"),
    (untracked, "the first: ?? notes.txt; expected a clean checkout"),
    (nobody, "expected a name and an address for the commit"),
    (detached, "found a detached HEAD"),
    (here, "solutions is checked out here"),
    (there, "elsewhere"),
    (in_the_way, "the branch solutions/old stands in the way of solutions"),
    (foreign_name, 'the first: ?? "caf\\351.txt"'),
    (no_repository, "expected a git repository of the course"),
    (inside_another, "lies inside another git repository"),
    (not_built, f"{CHINESE} is not in the commit"),
])
def test_an_unfit_checkout_is_refused_in_one_line(repository, runs, spoil, message, capsys, monkeypatch):
    monkeypatch.setenv("EMAIL", "guessed@example.org")
    spoil(repository, solutions_branch.ROOT)
    assert main(["solutions-branch"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and runs == []


@pytest.mark.slow
def test_a_real_kernel_fills_in_the_outputs(repository, capsys):
    assert main(["solutions-branch"]) == 0
    cells = json.loads(repository("show", f"refs/heads/solutions:{ENGLISH}"))["cells"]
    printed = {cell["id"]: cell["outputs"][0] for cell in cells if cell.get("outputs")}
    assert printed["test_double"]["text"] == ["[T1] ok\n"]
    assert any("sum · 合计" in str(output.get("data")) for output in printed.values())


@pytest.mark.slow
def test_a_failing_cell_is_named_and_nothing_is_committed(repository, capsys):
    write(solutions_branch.ROOT, repository, TINY.replace("# %%\nscorecard()", "# %%\nscorecard()\n1 / 0"))
    assert main(["solutions-branch"]) == 2
    error = capsys.readouterr().err
    assert error == f"autograde: {CHINESE}: a cell fails when run: ZeroDivisionError: division by zero\n"
    assert repository("branch", "--list", "solutions") == ""


@pytest.mark.slow
def test_a_kernel_that_dies_is_told_in_one_line(repository, capsys):
    deadly = TINY.replace("# %%\nscorecard()", "# %%\nscorecard()\nimport os; os._exit(3)")
    write(solutions_branch.ROOT, repository, deadly)
    assert main(["solutions-branch"]) == 2
    assert capsys.readouterr().err == f"autograde: {CHINESE}: the run does not finish: Kernel died\n"
