"""Run a learner's code apart from the grader: in bubblewrap, with limits, one process tree a submission.

A `Sandbox` keeps a zygote (sandbox_child.py) that forks a `Session` for each submission in milliseconds; a second
zygote has numpy and torch loaded. README.md says what the walls hold back and what they do not.
"""
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autograde.errors import InputError
from autograde.paths import ROOT

INSTALL = "Debian/Ubuntu: sudo apt install bubblewrap; Fedora: sudo dnf install bubblewrap"
START_S = 60  # of a zygote, numpy and torch loaded on a busy machine
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Limits:
    """What one submission may use. Seconds are wall time, but for `cpu_s`, which each of its processes has."""

    cell_s: float = 10.0  # one cell
    call_s: float = 5.0  # one call
    submission_s: float = 60.0
    cpu_s: int = 60
    memory_mb: int = 1024  # one process, beyond what the zygote has loaded
    total_mb: int = 2048  # all processes
    processes: int = 48  # threads count too
    tmp_mb: int = 64  # /tmp, and any one file
    reply_mb: int = 8  # all that one check may get back


class Stopped(Exception):
    """The learner's process hung, died or said too much; the text says which, in both languages."""


@functools.lru_cache(maxsize=1)
def sandbox_available():
    """None where bubblewrap works, else one line on what is missing and how to get it."""
    if not sys.platform.startswith("linux"):
        return "the sandbox needs Linux with bubblewrap; elsewhere grade in a Linux container, or with --unsafe"
    if not shutil.which("bwrap"):
        return f"bubblewrap (bwrap) is missing. {INSTALL}. Or grade your own class with --unsafe"
    try:
        with Sandbox() as sandbox:
            sandbox.open().close()
    except InputError as error:
        return f"{error}. bubblewrap is there but cannot start here (a container without user namespaces?)"
    return None


class OutOfStep(Stopped):
    """What came was no reply to what was asked, but something from before."""


class Sandbox:
    """Opens sessions, one at a time; use it in one thread, and close it. Raises InputError where it cannot start."""

    def __init__(self, limits=None, *, unsafe=False):
        self.limits = limits or Limits()
        self.mode = "unsafe" if unsafe else "nested"  # "single": a bubblewrap for each submission
        self._zygotes = {}  # are numpy and torch loaded -> _Zygote
        self._session = None
        self.start_cpu_s = 0.0  # CPU seconds that starting zygotes took

    def open(self, *, arrays=False):
        """A Session; `arrays`: with numpy and torch loaded. Raises InputError where none can start."""
        try:
            return self._open(arrays)
        except Refused as refused:
            if self.mode != "nested":
                raise InputError(f"the sandbox cannot start: {refused}") from None
            self.close()
            self.mode = "single"  # this host lets nobody nest namespaces
            return self.open(arrays=arrays)
        except OSError:  # the zygote was killed: once more with a new one
            self.close()
            try:
                return self._open(arrays)
            except (OSError, Refused) as error:
                raise InputError(f"the sandbox cannot start: {error}") from None

    def _open(self, arrays):
        if self._session:
            self._session.close()
        if arrays not in self._zygotes:
            self._zygotes[arrays] = _Zygote(self.mode, self.limits, arrays)
            self.start_cpu_s += self._zygotes[arrays].start_cpu_s
        zygote = self._zygotes[arrays]
        if self.mode == "single":
            del self._zygotes[arrays]
        self._session = Session(zygote, self.limits, owns_zygote=self.mode == "single")
        return self._session

    def close(self):
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes.clear()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Refused(Exception):
    """The host refuses a namespace, a mount or bubblewrap itself."""


class _Zygote:
    """A process that forks sessions, inside bubblewrap unless the mode is "unsafe"."""

    def __init__(self, mode, limits, arrays):
        self._folder = None
        if mode == "unsafe":  # in the sandbox every submission has a /tmp of its own
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            for name in ("home", "work"):
                os.mkdir(f"{self._folder.name}/{name}")
        config = asdict(limits) | {
            "nested": mode == "nested",
            "isolated": mode != "unsafe",
            "root": os.getuid() == 0,
            "preload": ["numpy", "torch"] if arrays else [],
            "site_packages": list(_packages() if mode == "unsafe" else _packages().values()),
            "folder": "/tmp" if self._folder is None else self._folder.name,
            "home": "/home/learner" if self._folder is None else f"{self._folder.name}/home",
        }
        self.control, inside = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(inside)
            command = [sys.executable, "-I", "-S", str(_HERE / "sandbox_child.py")]
            passed = [inside.fileno()]
            if mode != "unsafe":
                files = {f"/grader/{name}": stack.enter_context(open(_HERE / name, "rb"))
                         for name in ("sandbox_child.py", "wire.py")}
                command = _bubblewrap(files, limits) + [
                    os.path.realpath(sys.executable), "-I", "-S", "/grader/sandbox_child.py"]
                passed += [file.fileno() for file in files.values()]
            self._errors = tempfile.TemporaryFile()
            self.process = subprocess.Popen(
                [*command, str(inside.fileno()), json.dumps(config)], pass_fds=passed, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True,
            )
        self.control.settimeout(START_S)
        try:
            ready = self.control.recv(64)
        except OSError:
            ready = b""
        if not ready.startswith(b"ready"):
            self.close()
            raise Refused(self._complaint)
        self.start_cpu_s = float(ready.split()[1])

    def start(self, theirs):
        """Fork a process that serves the socket `theirs`. Raises OSError where the zygote is gone."""
        socket.send_fds(self.control, [b"start"], [theirs.fileno()])

    def stop(self, message):
        """Kill the session's processes, wait for their end; (exit code, "", "memory" or "hung up", CPU seconds).

        The message is b"died" where the process seems to have ended by itself, else b"stop".
        """
        self.control.send(message)
        answer = self.control.recv(256)
        if not answer:
            raise OSError("the zygote is gone")
        return json.loads(answer)

    def close(self):
        """End everything inside."""
        self.control.close()
        try:
            self.process.wait(2)  # it ends by itself
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if not self._errors.closed:
            self._errors.seek(0)
            lines = self._errors.read(4096).decode(errors="replace").strip().splitlines() or ["no reason given"]
            self._complaint = lines[-1]
            self._errors.close()
            if self._folder:
                self._folder.cleanup()


class Session:
    """One submission's process: ask it with `ask`, end it and all it started with `close`."""

    def __init__(self, zygote, limits, *, owns_zygote):
        self._zygote, self._limits, self._owns = zygote, limits, owns_zygote
        self._ours, theirs = socket.socketpair()
        self._buffer, self._ended, self._asked = bytearray(), None, 0
        with theirs:
            zygote.start(theirs)
        self._ours.setblocking(False)
        try:
            (hello,) = self._receive(1, time.monotonic() + START_S)
        except Stopped as stopped:
            raise OSError(str(stopped)) from None
        if hello != b"ready":
            self.close()
            raise Refused(hello.decode(errors="replace"))

    def ask(self, lines, *, replies, seconds):
        """Send lines (bytes), return so many lines. Raises Stopped, after which the session is over."""
        deadline = time.monotonic() + seconds
        self._asked += 1
        number = str(self._asked).encode()
        try:
            self._send(b"\n".join([number, *lines, b""]), deadline)
            came, *found = self._receive(1 + replies, deadline)
        except TimeoutError:
            self.close()
            raise Stopped(f"{seconds:g} 秒后仍未结束，已停止 · stopped after {seconds:g} s") from None
        except OSError:
            raise Stopped(self._why_it_died()) from None
        if came != number:
            self.close()
            raise OutOfStep("进程给出了不该有的答复 · its process gave replies that nobody asked for")
        return found

    def _send(self, data, deadline):
        view = memoryview(data)
        while view:
            try:
                view = view[self._ours.send(view):]
            except BlockingIOError:
                _wait(self._ours, deadline, writing=True)

    def _receive(self, count, deadline):
        limit = self._limits.reply_mb << 20
        lines = self._buffer.count(b"\n")
        while lines < count:
            try:
                data = self._ours.recv(1 << 18)
            except BlockingIOError:
                _wait(self._ours, deadline)
                continue
            if not data:
                raise Stopped(self._why_it_died())
            self._buffer += data
            lines += data.count(b"\n")
            if len(self._buffer) > limit:
                self.close()
                raise Stopped(f"结果超过 {limit >> 20} MB，已停止 · stopped: more than {limit >> 20} MB of results")
        *found, rest = self._buffer.split(b"\n", count)
        self._buffer = rest
        return list(map(bytes, found))

    def _why_it_died(self):
        self.close(b"died")
        code, why, _ = self._ended
        memory_mb = self._limits.total_mb
        if why == "memory":
            return f"内存超过 {memory_mb} MB，已停止 · stopped: more than {memory_mb} MB of memory"
        if why == "hung up":
            return "进程切断了与批改程序的连接 · its process cut its connection to the grader"
        if code == -signal.SIGKILL:
            return "进程被系统终止（CPU 时间或内存用尽）· its process was killed (out of CPU time or memory)"
        if code < 0:
            name = signal.Signals(-code).name
            return f"进程崩溃（{name}）· its process crashed ({name})"
        return f"进程自己退出（exit {code}）· its process ended itself (exit {code})"

    def close(self, message=b"stop"):
        """End every process of this submission; with them goes their /tmp. Returns the CPU seconds used."""
        if self._ended is None:
            self._ours.close()
            try:
                self._ended = self._zygote.stop(message)
            except (OSError, ValueError):
                self._ended = (0, "", 0.0)
                self._zygote.close()
            if self._owns:
                self._zygote.close()
        return self._ended[2]


def _wait(connection, deadline, *, writing=False):
    left = deadline - time.monotonic()
    waits = ([], [connection], [], max(left, 0)) if writing else ([connection], [], [], max(left, 0))
    if left <= 0 or not any(select.select(*waits)):
        raise TimeoutError


def _bases():
    """Folders of the Python below this environment, where /usr does not hold it."""
    folders = [sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
    return [folder for folder in dict.fromkeys(folders) if not folder.startswith("/usr")]


def _packages():
    """{folder with this environment's packages: where the sandbox sees it}."""
    folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    seen = tuple(f"{folder}/" for folder in (*_bases(), "/usr"))
    return {
        folder: folder if folder.startswith(seen) else f"/grader/packages{number}"
        for number, folder in enumerate(folders) if os.path.isdir(folder)
    }


def _bubblewrap(files, limits):
    """The command line of bubblewrap: system and Python to read, nothing else of this machine."""
    command = [
        "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--clearenv",
        # For the zygote alone: it makes namespaces and changes the user; submissions drop all of it.
        *(word for name in "SYS_ADMIN SETUID SETGID SETFCAP KILL".split() for word in ("--cap-add", f"CAP_{name}")),
    ]
    if os.getuid():  # to the host still this user, who owns the namespaces then
        command += ["--unshare-user", "--uid", "0", "--gid", "0"]
    # Made in advance: folders that bubblewrap makes on its own only root can enter.
    paths = [*_bases(), "/etc/x", "/grader/x", "/home/learner/x"]
    for parent in sorted({parent for path in paths for parent in Path(path).parents} - {Path("/")}):
        command += ["--perms", "0755", "--dir", str(parent)]
    for top in ("/bin", "/sbin", *map(str, sorted(Path("/").glob("lib*")))):
        if os.path.islink(top):
            command += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            command += ["--ro-bind", top, top]
    for path in ["/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", *_bases()]:
        command += ["--ro-bind-try", path, path]
    if str(ROOT).startswith(tuple(f"{folder}/" for folder in (*_bases(), "/usr"))):
        command += ["--tmpfs", str(ROOT), "--remount-ro", str(ROOT)]
    for folder, place in _packages().items():
        command += [] if folder == place else ["--ro-bind", folder, place]
        for name in sorted(os.listdir(folder)):
            if name.startswith("__editable__") or name.endswith((".pth", ".egg-link")):
                command += ["--ro-bind", "/dev/null", f"{place}/{name}"]  # they name the course's folder
            elif name in ("autograde", "toolkit"):
                command += ["--tmpfs", f"{place}/{name}", "--remount-ro", f"{place}/{name}"]
    command += ["--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"]
    command += ["--size", str(limits.tmp_mb << 20), "--tmpfs", "/tmp"]
    for path, file in files.items():
        command += ["--perms", "0444", "--ro-bind-data", str(file.fileno()), path]
    return [*command, "--remount-ro", "/", "--chdir", "/", "--"]
