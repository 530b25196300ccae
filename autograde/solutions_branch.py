"""The branch `solutions`: one commit on top of the present one, whose notebooks under `course/` are solved and run.

Made with git's plumbing and an index of its own, so the work tree, the index and other branches stay as they are.
A notebook whose cells are the same on the present `solutions` (or `origin/solutions`) keeps the outputs it has there
and is not run: measured figures differ from run to run, and a new commit should show what changed, not noise. To run
them all again, delete the branch first.
"""
import tempfile
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError
from rich.console import Console

from autograde import build, git
from autograde.badges import notebook_path
from autograde.chapter import LANGUAGES, load_chapters
from autograde.errors import InputError
from autograde.paths import ROOT
from autograde.settings import SOLUTIONS_BRANCH

REF = f"refs/heads/{SOLUTIONS_BRANCH}"
_EARLIER = (REF, f"refs/remotes/origin/{SOLUTIONS_BRANCH}")


def build_solutions_branch():
    """Build the branch from the commit that is checked out. Returns one line that says what was done.

    Raises InputError, with nothing changed, where the checkout is not fit for it or a notebook fails.
    """
    head = _fit_checkout()
    solved = {
        notebook_path(chapter.name, language): build.solved_notebook(chapter, language)
        for chapter in load_chapters()
        for language in LANGUAGES
    }
    there = _git("ls-tree", "-r", "--name-only", "-z", head, "course").split("\0")
    for path in sorted(set(solved) - set(there)):
        raise InputError(f"{path} is not in the commit {head[:10]}; run `make build` and commit what it writes")
    blobs = _run_or_keep(solved)
    tree = _tree(head, blobs)
    for ref in _EARLIER:
        commit = _resolve(ref)
        if commit and _git("rev-parse", f"{commit}^@", f"{commit}^{{tree}}").split() == [head, tree]:
            break
    else:
        message = f"Solve and run the notebooks of {head[:10]}"
        commit = _git("commit-tree", tree, "-p", head, "-m", message)
    before = _resolve(REF)
    if commit == before:
        return f"{SOLUTIONS_BRANCH} is up to date: {commit[:10]} on {head[:10]}"
    _git("update-ref", "-m", "autograde solutions-branch", REF, commit, before)
    return f"{SOLUTIONS_BRANCH}: {commit[:10]} on {head[:10]}, {len(blobs)} notebooks"


def _fit_checkout():
    """The commit that is checked out; InputError unless it is on a branch, clean, and git knows who commits."""
    top = _git("rev-parse", "--show-toplevel", wanted="a git repository of the course; clone it")
    if Path(top).resolve() != ROOT:
        raise InputError(f"{ROOT} lies inside another git repository, {top}; expected a clone of the course itself")
    branch = _git("symbolic-ref", "HEAD", wanted="a branch checked out, found a detached HEAD; `git switch main`")
    if branch == REF:
        raise InputError(f"{SOLUTIONS_BRANCH} is checked out here; `git switch main`")
    for worktree in _git("worktree", "list", "--porcelain").split("\n\n"):
        if f"branch {REF}" in worktree.split("\n"):
            raise InputError(f"{SOLUTIONS_BRANCH} is checked out in {worktree.split(chr(10))[0].partition(' ')[2]}")
    for name in _git("for-each-ref", "--format=%(refname:short)", f"{REF}/").split():
        raise InputError(f"the branch {name} stands in the way of {SOLUTIONS_BRANCH}; rename it: `git branch -m`")
    head = _git("rev-parse", "--verify", "HEAD", wanted="a commit to build from, found none")
    for person in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
        _git("var", person, wanted="a name and an address for the commit; `git config user.name …` and `user.email …`")
    changed = _git("status", "--porcelain", "--untracked-files=normal").split("\n")
    if changed != [""]:
        raise InputError(
            f"{len(changed)} changed or untracked files, the first: {changed[0].strip()}; expected a clean checkout: "
            "commit or stash them"
        )
    return head


def _run_or_keep(solved):
    """{path: blob} of the solved notebooks ({path: notebook}), each run unless an earlier run fits."""
    console, blobs = Console(), {}
    for path, notebook in solved.items():
        blobs[path] = _kept(path, notebook)
        if blobs[path]:
            console.print(f"{path}: its cells are the same, outputs kept", highlight=False, soft_wrap=True)
            continue
        with console.status(f"{path}: running"), tempfile.TemporaryDirectory() as folder:
            try:
                text = build.text(build.executed(notebook, folder))
            except CellExecutionError as error:
                said = f"{error.ename}: {error.evalue}".split("\n")[0][:200]
                raise InputError(f"{path}: a cell fails when run: {said}") from None
            except Exception as error:  # a kernel that dies or is missing, Ctrl-C: nbclient has many words for it
                said = (str(error) or type(error).__name__).splitlines()[0]
                raise InputError(f"{path}: the run does not finish: {said}") from None
        blobs[path] = _git("hash-object", "-w", "--stdin", text=text)
        console.print(f"{path}: run", highlight=False, soft_wrap=True)
    return blobs


def _kept(path, notebook):
    """The blob of an earlier branch that holds this notebook with outputs, or ""."""
    for ref in _EARLIER:
        blob = _resolve(f"{ref}:{path}")
        if blob and _fits(_git("cat-file", "blob", blob), notebook):
            return blob
    return ""


def _fits(text, notebook):
    """Does this text hold the notebook, run from end to end?"""
    try:
        earlier = nbformat.reads(text, as_version=4)
        same = _cells(earlier) == _cells(notebook)
    except Exception:  # no notebook, or one that somebody broke: nbformat has many errors
        return False
    code = [cell for cell in earlier.cells if cell.cell_type == "code"]
    failed = any(output.output_type == "error" for cell in code for output in cell.outputs)
    return same and not failed and all(cell.execution_count for cell in code)  # someone may have cleared them


def _cells(notebook):
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def _tree(head, blobs):
    """The tree of `head` with these blobs in place."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git("read-tree", head, **index)
        entries = "".join(f"100644 {blob}\t{path}\0" for path, blob in blobs.items())
        _git("update-index", "-z", "--index-info", text=entries, **index)
        return _git("write-tree", **index)


def _resolve(name):
    """The object of this name, "" where there is none."""
    found = git.call("rev-parse", "--verify", "--quiet", name)
    return found.stdout.strip() if found.returncode == 0 else ""


def _git(*arguments, wanted=None, **options):
    """What git prints. Where it fails: InputError with what was `wanted`, else with git's own word for it."""
    result = git.call(*arguments, **options)
    if result.returncode == 0:
        return result.stdout.strip()
    lines = result.stderr.strip().split("\n")
    said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1])
    raise InputError(f"{ROOT}: expected {wanted}" if wanted else f"git {arguments[0]}: {said}")
