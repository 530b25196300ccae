"""pyproject.toml, environment.yml and constraints.txt say the same; the README's commands exist."""
import re

import pytest
import yaml
from packaging.requirements import Requirement

from autograde.paths import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

# Looked up on conda-forge, one by one: a name that is missing here was not.
SAME_ON_CONDA = set(
    "distributed hypothesis ipykernel ipywidgets jinja2 jupyterlab jupytext mutmut nbclient nbformat nbgrader nbval "
    "numpy pytest pyyaml rich ruff".split()
)
CONDA_NAMES = {name: name for name in SAME_ON_CONDA} | {
    "matplotlib": "matplotlib-base",  # without Qt
    "playwright": "playwright-python",  # plain `playwright` is the Node program, without a Python module
    "torch": "pytorch",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RANGES = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
PINS = [
    Requirement(line)
    for line in (ROOT / "autograde" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
PYTHONS = ["3.10.14", "3.11.7", "3.12.4", "3.13.1"]


def pinned(name, python):
    """The one version of a package that constraints.txt has for this Python on Linux."""
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0],
                   "sys_platform": "linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    (pin,) = (pin for pin in PINS
              if pin.name == name and (pin.marker is None or pin.marker.evaluate(environment)))
    return str(pin.specifier).removeprefix("==")


def test_conda_users_get_the_same_ranges_under_conda_s_names():
    packages = {line for line in CONDA if isinstance(line, str)}
    wanted = {f"{CONDA_NAMES[one.name]}{one.specifier}" for one in RANGES}
    assert packages - {"pip"} == wanted | {f"python{PROJECT['requires-python']}"}


@pytest.mark.parametrize("python", PYTHONS)
def test_what_conda_may_install_includes_the_tested_versions(python):
    pypi = {conda: name for name, conda in CONDA_NAMES.items()}
    packages = [Requirement(line) for line in CONDA if isinstance(line, str) and line != "pip"]
    assert len(packages) == len(RANGES) + 1
    for package in packages:
        version = python if package.name == "python" else pinned(pypi[package.name], python)
        assert package.specifier.contains(version), f"{package} leaves out {version}"


def test_pip_within_conda_only_adds_the_course_itself():
    # conda hands these lines to pip as a file of requirements, which takes no --no-deps.
    assert [line["pip"] for line in CONDA if isinstance(line, dict)] == [["--editable ."]]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_one_tested_version_within_its_range(python):
    for wanted in RANGES:
        version = pinned(wanted.name, python)
        assert wanted.specifier.contains(version), f"{wanted.name} {version} is outside {wanted}"


def test_torch_is_pinned_as_documented():
    assert next(pin for pin in PINS if pin.name == "torch").specifier == Requirement("torch==2.13.0").specifier


def test_the_readme_s_cpu_torch_is_the_pinned_one_and_stays():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"pip install (torch==\S+) --index-url https://download\.pytorch\.org/whl/cpu", readme)
    assert named == [f"torch=={pinned('torch', python)}" for python in PYTHONS[:2]]  # in both languages
    assert Requirement(named[0]).specifier.contains("2.13.0+cpu")  # so `make lab` does not replace it
    builds = re.findall(r"`pytorch ?(>=\S+) (cpu|cuda)\*`", readme)
    wanted = str(next(one for one in RANGES if one.name == "torch").specifier)
    assert builds == [(wanted, "cpu"), (wanted, "cuda")] * 2


def test_the_readme_s_make_targets_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`?\bmake ([a-z]+)", readme))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"lab", "test", "grade"} <= named <= targets
