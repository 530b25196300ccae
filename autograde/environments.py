"""Environments as learners meet them elsewhere, and a way to run a notebook there alone and offline.

`environments/` holds what each consists of. An environment is made once, in `.environments/`, and made anew when
its requirements change. `oldest` lacks ipywidgets; they lie in a folder beside it, for PYTHONPATH.
"""
import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from autograde.errors import InputError
from autograde.paths import ENVIRONMENTS, REQUIREMENTS, ROOT
from autograde.sandbox import INSTALL

PYTHONS = {"colab": [(3, 11), (3, 12), (3, 13)], "oldest": [(3, 10)]}  # what its requirements install on
_ASK_VERSION = "import ensurepip, sys, venv; print(*sys.version_info[:2])"  # Debian's may lack ensurepip


class Environment(NamedTuple):
    """A Python to run notebooks with. `widgets`: a folder that holds ipywidgets where the Python itself has none."""

    python: str
    widgets: Path | None = None


def current():
    """The Environment that this process runs in."""
    return Environment(sys.executable)


def made(name):
    """The Environment of environments/<name>.txt, made where it is not there yet (minutes, up to 6 GB).

    Raises InputError, one line, where its Python is missing or its packages cannot be installed.
    """
    python, version = _python(name)
    texts = b"".join(_requirements(one).read_bytes() for one in (name, f"{name}-constraints", "widgets"))
    stem = f"{name}-{version}-"
    folder = ENVIRONMENTS / f"{stem}{hashlib.sha256(texts).hexdigest()[:12]}"
    ENVIRONMENTS.mkdir(exist_ok=True)
    with open(ENVIRONMENTS / f"{stem}lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        # `installed` is written last: what was interrupted is made again. Its Python may be gone by now.
        if not ((folder / "installed").exists() and (folder / "bin" / "python").exists()):
            for old in ENVIRONMENTS.glob(f"{stem}*/"):
                shutil.rmtree(old)
            _make(name, python, folder)
            (folder / "installed").touch()
    widgets = folder / "widgets"
    return Environment(str(folder / "bin" / "python"), widgets if widgets.exists() else None)


def run_alone(environment, folder, arguments, *, widgets=True):
    """Run `python <arguments>` of the Environment in `folder`: all it can write, and its home. A CompletedProcess.

    There is no network but loopback, and this repository is not there. Without `widgets` PYTHONPATH stays empty.
    Raises InputError where bubblewrap is missing.
    """
    if not shutil.which("bwrap"):
        raise InputError(f"bubblewrap (bwrap) is missing. {INSTALL}")
    prefix = str(Path(environment.python).parents[1])
    variables = {"HOME": folder, "LANG": "C.UTF-8", "PATH": f"{prefix}/bin:/usr/bin:/bin"}
    if widgets and environment.widgets:
        variables["PYTHONPATH"] = environment.widgets
    command = [
        "bwrap", "--unshare-net", "--unshare-pid", "--die-with-parent", "--new-session", "--clearenv",
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", str(ROOT),
        "--ro-bind", prefix, prefix, "--bind", str(folder), str(folder), "--chdir", str(folder),
        *(str(word) for item in variables.items() for word in ("--setenv", *item)),
        environment.python, *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def _python(name):
    """(path, "3.11") of a Python that fits this environment, this process's own if it does."""
    wanted = PYTHONS[name]
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [sys.executable]
    for major, minor in wanted:
        candidates += [shutil.which(f"python{major}.{minor}")]
        candidates += sorted(glob.glob(f"{glob.escape(pyenv)}/versions/{major}.{minor}.*/bin/python"))
    for path in filter(None, candidates):
        # A name on PATH may be a shim that only says that this version is not chosen.
        answer = subprocess.run([path, "-c", _ASK_VERSION], capture_output=True, text=True, check=False).stdout
        if answer in [f"{major} {minor}\n" for major, minor in wanted]:
            return path, answer.strip().replace(" ", ".")
    names = " or ".join(f"python{major}.{minor}" for major, minor in wanted)
    raise InputError(f"{_requirements(name)}: found no {names} with venv, on PATH or in {pyenv}; install one")


def _make(name, python, folder):
    _run([python, "-m", "venv", folder], name)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "--requirement", _requirements(name), "--constraint", _requirements(f"{name}-constraints")], name)
    if "widgets.txt" not in _requirements(name).read_text(encoding="utf-8"):
        _run([*pip, "--no-deps", "--target", folder / "widgets", "--requirement", _requirements("widgets")], name)


def _requirements(name):
    return REQUIREMENTS / f"{name}.txt"


def _run(command, name):
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if run.returncode:
        said = (run.stdout + run.stderr).strip().splitlines() or [f"exit status {run.returncode}"]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1])
        raise InputError(f"{_requirements(name)}: the environment cannot be made: {reason}")
