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

CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RANGES = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
PINS = [
    Requirement(line)
    for line in (ROOT / "autograde" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def test_conda_users_get_the_same_ranges():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    packages = {line for line in conda if isinstance(line, str)}
    wanted = {f"{CONDA_NAMES.get(one.name, one.name)}{one.specifier}" for one in RANGES}
    assert packages - {"pip"} == wanted | {f"python{PROJECT['requires-python']}"}


@pytest.mark.parametrize("python", ["3.10.14", "3.11.7", "3.12.4", "3.13.1"])
def test_every_dependency_has_one_tested_version_within_its_range(python):
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0],
                   "sys_platform": "linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    for wanted in RANGES:
        pins = [pin for pin in PINS if pin.name == wanted.name and (
            pin.marker is None or pin.marker.evaluate(environment))]
        assert len(pins) == 1, f"{wanted.name} on Python {python}: {pins}"
        version = str(pins[0].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{pins[0]} is outside {wanted}"


def test_torch_is_pinned_as_documented():
    assert next(pin for pin in PINS if pin.name == "torch").specifier == Requirement("torch==2.13.0").specifier


def test_the_readme_s_make_targets_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`?\bmake ([a-z]+)", readme))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"lab", "test", "grade"} <= named <= targets
