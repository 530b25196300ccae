"""Keep what was graded by the hash of what it depends on, so that nothing is graded twice or lost."""
import fcntl
import hashlib
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from autograde import graded
from autograde.course import write_atomically
from autograde.errors import InputError
from autograde.paths import AUTOGRADE, TOOLKIT

_JUDGES = ("referee.py", "repair.py", "pieces.py", "reading.py", "handout.py", "sandbox.py", "sandbox_child.py",
           "wire.py", "worker.py", "graded.py")


def key_of(chapter, candidates, unsafe):
    """The name under which a result is kept: chapter, checks, grader, seed and the submitted bytes decide it."""
    digest = hashlib.sha256()
    for path in (chapter.path, TOOLKIT / "checks.py", *(AUTOGRADE / name for name in _JUDGES)):
        digest.update(path.read_bytes())
    parts = [chapter.name, os.environ.get("COURSE_SEED", ""), str(unsafe)]
    parts += [part for candidate in candidates for part in (candidate.name, candidate.digest, candidate.problem)]
    digest.update("\0".join(parts).encode("utf-8", "replace"))
    return digest.hexdigest()


def kept(folder, key):
    """The Graded under this key, or None. A file that cannot be read is as good as none."""
    try:
        return graded.from_json((folder / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(folder, key, result):
    """Keep a Graded, whole or not at all."""
    write_atomically(folder / f"{key}.json", graded.to_json(result))


@contextmanager
def only_one(results, db_url=None):
    """Hold the results folder, and a gradebook file that lies elsewhere, for one grading run.

    Raises InputError when another run holds one of them. (A database server keeps its own order.)
    """
    results.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        _hold(stack, results / ".lock", f"{results}: another grading run is writing here; wait for it, or give "
                                        "another --results")
        gradebook = _sqlite_file(db_url)
        if gradebook and gradebook.parent.is_dir():
            _hold(stack, gradebook.with_name(f".{gradebook.name}.lock"),
                  f"{gradebook}: another grading run is writing into this gradebook; wait for it")
        yield


def _hold(stack, path, message):
    file = stack.enter_context(open(path, "a", encoding="utf-8"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(message) from None


def _sqlite_file(db_url):
    try:
        url = make_url(db_url or "sqlite://")
    except ArgumentError:
        return None  # open_gradebook says it
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
