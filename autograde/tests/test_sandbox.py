"""The walls of the sandbox, one guarantee after the other, for every way it can be started."""
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autograde import sandbox, wire
from autograde.errors import InputError
from autograde.paths import ROOT
from autograde.sandbox import Limits, OutOfStep, Sandbox, Stopped, sandbox_available

WHY_NOT = sandbox_available()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "")
LIMITS = Limits(memory_mb=300, total_mb=500, tmp_mb=16, processes=20, reply_mb=1)


@pytest.fixture(scope="module", params=["nested", pytest.param("single", marks=pytest.mark.slow)])
def box(request):
    """A sandbox with small limits; "single" is what hosts get that refuse nested namespaces."""
    with Sandbox(LIMITS) as made:
        made.mode = request.param
        yield made
        assert made.mode == request.param


class Cells:
    """Run cells, call functions, as referee.py does it."""

    def __init__(self, box):
        self.session = box.open()

    def run(self, source, *functions, seconds=10):
        request = {"cell": source, "label": "<cell>", "functions": functions, "stubs": ["check"]}
        (line,) = self.session.ask([json.dumps(request).encode()], replies=1, seconds=seconds)
        return wire.decode(line)

    def printed(self, source):
        error, printed, _, _ = self.run(source)
        assert error == "", error
        return printed.strip()

    def call(self, name, *args, tables=None, seconds=10):
        header = json.dumps({"name": name, "calls": 1}).encode()
        lines = [header, wire.encode(tables or {}).encode(), wire.encode([list(args), {}]).encode()]
        (line,) = self.session.ask(lines, replies=1, seconds=seconds)
        return line


@pytest.fixture
def cells(box):
    made = Cells(box)
    yield made
    made.session.close()


TRY = """
def attempt(action):
    try:
        return action()
    except BaseException as error:
        return type(error).__name__
"""


# ---- what works ----

def test_cells_run_and_functions_answer(cells):
    assert cells.run("def double(x):\n    return 2 * x\nprint('defined')", "double", "triple") == [
        "", "defined\n", ["double"], False]
    assert cells.call("double", 21) == b"v42"
    assert cells.call("double", [1]) == b"v[1,1]"


@pytest.mark.parametrize(("source", "printed"), [
    ("from __future__ import annotations\ndef f(x: NoSuchType): pass\nprint('fine')", "fine"),
    ("import asyncio\nawait asyncio.sleep(0)\nprint('awaited')", "awaited"),
    ("if __name__ == '__main__':\n    print('main')", "main"),
    ("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1])\nplt.show()\nprint('drawn')", "drawn"),
    ("import ipywidgets as w\n@w.interact(x=(0, 5))\ndef f(x): pass\nprint('widget')", "widget"),
    ("from IPython.display import display, HTML\ndisplay(HTML('<b>'))\ndisplay(1)\nprint('shown')", "shown"),
    ("from toolkit.checks import check, demo\nwith demo('T1'):\n    1 / 0\ncheck('t', 'f', [])\nprint('ok')", "ok"),
    ("get_ipython().run_line_magic('time', 'x = 5')\nprint(x, get_ipython().getoutput('ls'))", "5 []"),
    ("get_ipython().system('touch /tmp/made')\nimport os\nprint(os.path.exists('/tmp/made'))", "False"),
    ("get_ipython().events.register('pre_run_cell', print)\nprint('hooked nothing')", "hooked nothing"),
    ("import csv, sqlite3, dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\nprint(A())", "A(x=1)"),
    ("import numpy\nprint(numpy.arange(3).sum())", "3"),
])
def test_habits_of_notebooks_work(cells, source, printed):
    assert cells.printed(source) == printed


def test_future_imports_last_for_the_cells_that_follow(cells):
    cells.run("from __future__ import annotations")
    assert cells.run("def f(x: NoSuchType): pass")[0] == ""


@pytest.mark.parametrize(("source", "error"), [
    ("print（1）", "SyntaxError"), ("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit(3)", "SystemExit: 3"),
    ("exit()", "SystemExit"), ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("x = input('?')", "EOFError"),
    ("x = '\\ud800'; raise ValueError(x)", "ValueError"),
    ("a" * 10 + "\0", ("SyntaxError", "ValueError: source code string cannot contain null bytes")),  # until Python 3.11
])
def test_a_failing_cell_costs_only_itself(cells, source, error):
    assert cells.run(source)[0].startswith(error)
    assert cells.printed("print('next')") == "next"


def test_replies_say_what_a_call_did(cells):
    cells.run(
        "class Mine(ValueError): pass\n"
        "def fail(x):\n    raise Mine('no')\n"
        "def change(x):\n    x.append(1)\n"
        "def other(x):\n    return print\n"
        "def deep(x):\n    y = []\n    y.append(y)\n    return y\n", "fail")
    bases, message, words = wire.decode(cells.call("fail", 1)[1:])
    assert bases[:2] == ["ValueError", "Exception"] and (message, words) == ("no", "Mine: no (line 3 in fail)")
    assert cells.call("change", [0]) == b"vnull\t[[0,1]]"
    assert wire.decode(cells.call("other", 1)[1:]).type_name == "builtin_function_or_method"
    assert b"nested deeper" in cells.call("deep", 1)
    assert b"KeyError" in cells.call("never_defined", 1)


def test_recorded_answers_stand_in_for_one_call(cells):
    cells.run("def part(x, y):\n    return 'wrong'\ndef whole(x):\n    return part(x, y=x)", "whole")
    tables = {"part": (["x", "y"], [([3, 3], "right"), ([{"a": 1}, {"a": 1}], "covered")])}
    assert cells.call("whole", 3, tables=tables) == b'v"right"'
    assert cells.call("whole", {"a": 1, "mine": 2}, tables=tables) == b'v"covered"'
    assert cells.call("whole", 4, tables=tables).startswith(b"e")
    assert cells.call("whole", 3) == b'v"wrong"'


@pytest.mark.parametrize(("source", "keeps"), [
    ("def f(x): return sorted(x)", False), ("LIMITS = {'a': 1}\ndef f(x): return LIMITS[x] + len(LIMITS)", False),
    ("N = 3\ndef f(x): return N * x", False), ("seen = []\ndef f(x):\n    seen.append(x)\n    return seen", True),
    ("n = 0\ndef f(x):\n    global n\n    n += x\n    return n", True), ("def f(x, seen=[]): return seen", True),
    ("def f(x):\n    f.calls = 1", True), ("import random\ndef f(x): return random.random()", True),
    ("class A:\n    seen = []\ndef f(x): A.seen.append(x)", True), ("it = iter([1])\ndef f(x): return next(it)", True),
])
def test_functions_that_may_keep_state_are_told_apart(cells, source, keeps):
    assert cells.run(source)[3] is keeps


# ---- what is out of sight ----

def test_nothing_of_the_course_is_in_sight(cells, tmp_path):
    secret = tmp_path / "gradebook.db"
    secret.write_text("marks")
    hidden = [str(ROOT), f"{ROOT}/solutions", f"{ROOT}/autograde/referee.py", str(secret), str(Path.home() / ".ssh"),
              "/etc/passwd", "/etc/hostname", "/var", "/sys", "/mnt", "/opt", "/srv", "/run"]
    assert cells.printed(f"import os\nprint([p for p in {hidden} if os.path.exists(p)])") == "[]"


def test_no_file_in_sight_holds_the_course(cells):
    walk = """
import os
found = []
for root in ('/grader', '/home', '/tmp', '/root', '/etc', '/dev'):
    for folder, _, files in os.walk(root):
        if 'packages' not in folder and '/lib/python' not in folder:
            found += [f for f in files if f.endswith(('.ipynb', '.db')) or 'referee' in f or 'autograde' in f]
print(found)
import importlib.util
print(importlib.util.find_spec('autograde'), importlib.util.find_spec('toolkit').loader.__name__)
"""
    assert cells.printed(walk) == "[]\nNone _Absent"


def test_files_that_name_the_courses_folder_are_blank(cells):
    source = f"""
import os, sys
text = ''
for folder in sys.path:
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name.startswith('__editable__') or name.endswith(('.pth', '.egg-link')):
            try:
                text += open(os.path.join(folder, name)).read()
            except PermissionError:
                pass
print({str(ROOT)!r} in text)
"""
    assert cells.printed(source) == "False"


def test_the_environment_is_clean(cells, monkeypatch):
    monkeypatch.setenv("COURSE_SEED", "77")
    assert "COURSE_SEED" not in cells.printed("import os\nprint(dict(os.environ))")
    names = cells.printed("import os\nprint(sorted(os.environ))")
    assert names == "['HOME', 'LANG', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'PATH', 'TMPDIR']"


def test_no_other_process_is_in_sight(cells):
    pids = cells.printed("import os\nprint([int(p) for p in os.listdir('/proc') if p.isdigit()], os.getppid())")
    assert pids in ("[1] 0", "[1, 2, 3] 2")
    parent = str(os.getpid())
    assert cells.printed(f"import os\nprint(os.path.exists('/proc/{parent}/environ'))") == "False"


def test_no_descriptor_but_its_own_is_open(cells):
    source = """
import os
for fd in sorted(os.listdir('/proc/self/fd'))[:-1]:  # the last one reads this folder
    print(fd, os.readlink(f'/proc/self/fd/{fd}').split(':')[0])
"""
    assert cells.printed(source) == "0 /dev/null\n1 /dev/null\n2 /dev/null\n3 socket"


def test_peeking_at_frames_and_objects_finds_no_test(cells):
    cells.run("""
import gc, sys, linecache
def peek(x):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [repr(v) for v in frame.f_locals.values()]
        frame = frame.f_back
    seen += [o for o in gc.get_objects() if isinstance(o, str)]
    seen += [repr(o)[:10000] for o in gc.get_objects() if isinstance(o, (list, tuple, dict)) and len(o) < 100]
    text = ''.join(seen)
    return [' '.join(words) in text for words in (['BEGIN', 'HIDDEN'], ['BEGIN', 'SOLUTION'], ['declare', 'todos'])]
""", "peek")
    assert cells.call("peek", 5) == b"v[false,false,false]"


# ---- what is out of reach ----

def test_there_is_no_network(cells):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = TRY + f"""
import socket
print(attempt(lambda: socket.create_connection(('127.0.0.1', {port}), timeout=2)))
print(attempt(lambda: socket.create_connection(('1.1.1.1', 53), timeout=2)))
print([attempt(lambda: socket.socket(family, socket.SOCK_STREAM)) for family in (16, 17, 40)])
print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])
"""
        assert cells.printed(source).split("\n") == [
            "ConnectionRefusedError", "OSError", "['PermissionError', 'PermissionError', 'PermissionError']", "['lo']"]
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_can_be_written_but_tmp(cells):
    places = ["/x", "/usr/x", "/home/learner/x", "/grader/x", "/dev/x", "/dev/shm/x", "/etc/x", "/proc/x",
              f"{sys.base_prefix}/x", "/grader/packages0/x"]
    source = TRY + f"""
import os
def write(path):
    open(path, 'w').write('x')
    return 'written'
print({{attempt(lambda: write(path)) for path in {places}}} - {{'OSError', 'PermissionError', 'FileNotFoundError'}})
print(attempt(lambda: write('/tmp/x')), os.getcwd(), os.listdir('.'), os.listdir(os.environ['HOME']))
"""
    assert cells.printed(source) == "set()\nwritten /tmp/work [] []"


def test_privileges_cannot_be_had(cells):
    source = TRY + """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
calls = [libc.unshare(0x10000000), libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), libc.ptrace(16, 1, 0, 0),
         libc.umount2(b'/proc', 2), libc.chroot(b'/tmp')]
print(calls, os.getuid() == 0 or attempt(lambda: os.setuid(0)) is None, attempt(lambda: os.memfd_create('m')))
print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', 'NoNewPrivs'))])
"""
    assert cells.printed(source).split("\n") == [
        "[-1, -1, -1, -1, -1] False PermissionError", "['0000000000000000', '0000000000000000', '1']"]


def test_killing_everything_in_reach_kills_only_itself(cells, box):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        source = """
import os, signal
for pid in [os.getppid(), 0, -1, *range(2, 4000)]:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""
        try:
            cells.run(source)
        except Stopped:
            pass
        assert victim.poll() is None
        assert Cells(box).printed("print('next')") == "next"
    finally:
        victim.kill()
        victim.wait()


def test_a_submission_leaves_nothing_to_the_next(box):
    first = Cells(box)
    with contextlib.suppress(Stopped):  # it may well break itself
        first.run("""
import builtins, os, sys, json
open('/tmp/mark', 'w').write('x')
sys.modules['math'] = None
os.environ['MARK'] = '1'
json.dumps = builtins.len = builtins.isinstance = lambda *args: 5
""")
    first.session.close()
    second = Cells(box)
    assert second.printed("import os, math\nprint(os.listdir('/tmp'), len([]), os.environ.get('MARK'))") == (
        "['work'] 0 None")
    second.session.close()


# ---- what is limited ----

def test_a_fork_bomb_stays_bounded(cells, box):
    made = cells.printed("""
import os, time
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
""")
    assert 5 < int(made) < LIMITS.processes
    start = time.monotonic()
    cells.session.close()
    assert time.monotonic() - start < 5
    assert Cells(box).printed("import os\nprint(os.fork() >= 0)") != ""


def test_threads_count_as_processes(cells):
    source = TRY + """
import threading, time
def start():
    for n in range(500):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
print(attempt(start))
"""
    assert cells.printed(source) == "RuntimeError"


def test_memory_of_a_process_is_limited(cells):
    assert cells.run("hog = [bytearray(1 << 24) for _ in range(10_000)]")[0].startswith("MemoryError")
    assert cells.printed("print('alive')") == "alive"


def test_memory_of_all_processes_together_is_limited(cells):
    source = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        hog = b'x' * (200 << 20)
        time.sleep(60)
time.sleep(60)
"""
    start = time.monotonic()
    with pytest.raises(Stopped, match="more than 500 MB of memory"):
        cells.run(source, seconds=30)
    assert time.monotonic() - start < 20


def test_disk_is_limited(cells):
    source = TRY + """
def one_file():
    with open('/tmp/one', 'wb') as file:
        for _ in range(100):
            file.write(b'x' * (1 << 20))
def many_files():
    for n in range(100):
        with open(f'/tmp/{n}', 'wb') as file:
            file.write(b'x' * (1 << 20))
def many_names():
    for n in range(10**6):
        open(f'/tmp/n{n}', 'w').close()
print(attempt(one_file), attempt(many_files), end=' ')
import os, shutil
for name in os.listdir('/tmp'):
    if name != 'work':
        os.remove('/tmp/' + name)
"""
    assert cells.printed(source) == "OSError OSError"


def test_output_is_limited(cells):
    error, printed, _, _ = cells.run("for _ in range(10**5):\n    print('x' * 100)")
    assert error == "" and 60_000 < len(printed) <= 1 << 16


def test_results_are_limited(cells):
    cells.run("def big(n):\n    return 'x' * n", "big")
    assert cells.call("big", 1000) == b'v"' + b"x" * 1000 + b'"'
    assert b"the limit is" in cells.call("big", 10**8)


def test_a_flood_on_the_socket_is_stopped(cells):
    with pytest.raises(Stopped, match="more than 1 MB"):
        cells.run("import os\nwhile True:\n    os.write(3, b'x' * 65536)")


@pytest.mark.parametrize("source", [
    "while True:\n    pass",
    "import time\ntime.sleep(60)",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True:\n    pass",
    "import os\nos.close(3)\nos.dup2(os.pipe()[1], 3)\nwhile True:\n    pass",
    "import threading\nthreading.Lock().acquire()\nl = threading.Lock()\nl.acquire()\nl.acquire()",
], ids=["spin", "sleep", "block signals", "close descriptors", "deadlock"])
def test_a_hang_is_stopped(cells, source):
    start = time.monotonic()
    with pytest.raises(Stopped, match="stopped after 0.5 s|cut its connection"):
        cells.run(source, seconds=0.5)
    assert time.monotonic() - start < 5


def test_cpu_time_is_limited():
    with Sandbox(Limits(cpu_s=1)) as box:
        start = time.monotonic()
        with pytest.raises(Stopped, match="CPU"):
            Cells(box).run("while True:\n    pass", seconds=30)
        assert time.monotonic() - start < 20


@pytest.mark.parametrize("source", [
    "import os\nos._exit(0)", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nos._exit(3)",
    "import ctypes\nctypes.string_at(0)", "import os\nos.abort()", "import os\nos.execv('/bin/true', ['true'])",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nos._exit(0)", "import os\nos.closerange(0, 100)\n",
], ids=["_exit", "segv", "null", "abort", "exec", "sigstop", "close all"])
def test_death_is_told_and_the_next_process_starts(cells, box, source):
    with pytest.raises(Stopped, match=r"ended itself|crashed|stopped after 2 s|cut its"):
        cells.run(source, seconds=2)
    assert Cells(box).printed("print('next')") == "next"


def test_a_daemon_dies_with_its_submission(cells):
    mark = f"DAEMON_{time.time_ns()}"
    cells.run(f"""
import subprocess, sys, os
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])
    os._exit(0)
""")
    assert comes_true(lambda: any(mark in line for line in command_lines()))
    cells.session.close()
    assert comes_true(lambda: not any(mark in line for line in command_lines()))


def comes_true(condition):
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def command_lines():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                yield file.read()
        except OSError:
            continue


# ---- what it may forge ----

def test_a_forged_reply_is_only_an_answer_of_its_own(cells):
    cells.run("import os\ndef f(x):\n    os.write(3, b'2\\nv42\\n')\n    while True:\n        pass", "f")
    assert cells.call("f", 1) == b"v42"


def test_replies_that_nobody_asked_for_are_told(cells):
    cells.run("import os\ndef f(x):\n    os.write(3, b'v42\\n' * 3)\n    return x", "f")
    with pytest.raises(OutOfStep):
        cells.call("f", 1)


def test_patched_builtins_and_encoders_harm_only_itself(cells):
    source = """
import builtins, json, sys
def f(x):
    return x
json.dumps = json.JSONEncoder.encode = lambda *args, **kwargs: 'forged'
sys.modules['wire'].encode = lambda value: 'forged'
"""
    try:
        cells.run(source, "f")
        reply = cells.call("f", 1)
    except (Stopped, wire.WireError):
        return
    with pytest.raises(wire.WireError):
        wire.decode(reply[1:])


# ---- around it ----

def test_a_killed_zygote_is_replaced():
    with Sandbox() as box:
        Cells(box).session.close()
        (zygote,) = box._zygotes.values()
        zygote.process.kill()
        zygote.process.wait()
        assert Cells(box).printed("print('again')") == "again"


def test_everything_ends_with_the_sandbox():
    with Sandbox() as box:
        session = Cells(box)
        session.run("import os\nos.fork()")
        (zygote,) = box._zygotes.values()
    assert zygote.process.poll() is not None
    with pytest.raises(Stopped):
        session.run("1", seconds=1)


def test_everything_dies_with_the_grader():
    script = ("import sys, time; from autograde.sandbox import Sandbox; box = Sandbox(); box.open(); "
              "print(next(iter(box._zygotes.values())).process.pid, flush=True); time.sleep(60)")
    grader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(grader.stdout.readline())
    grader.kill()
    grader.wait()
    assert comes_true(lambda: not Path("/proc", str(pid), "root", "usr").exists())


def test_threads_grade_side_by_side():
    results = []

    def grade():
        with Sandbox() as box:
            for number in range(5):
                cells = Cells(box)
                cells.run("def f(x):\n    return x", "f")
                results.append(cells.call("f", number))
                cells.session.close()

    threads = [threading.Thread(target=grade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([b"v%d" % n for n in range(5)] * 3)


def test_a_host_that_refuses_nesting_gets_a_bubblewrap_for_each_submission(monkeypatch):
    real = sandbox._Zygote

    def refuse(mode, limits, arrays):
        if mode == "nested":
            raise sandbox.Refused("no nested namespaces here")
        return real(mode, limits, arrays)

    monkeypatch.setattr(sandbox, "_Zygote", refuse)
    with Sandbox() as box:
        assert Cells(box).printed("print('fine')") == "fine"
        assert box.mode == "single"


def test_without_bubblewrap_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    reason = sandbox_available.__wrapped__()
    assert "apt install bubblewrap" in reason and "--unsafe" in reason and "\n" not in reason


def test_a_bubblewrap_that_fails_is_told(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no permission' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "bwrap: no permission" in sandbox_available.__wrapped__()
    with pytest.raises(InputError, match="no permission"), Sandbox() as box:
        box.open()


def test_unsafe_runs_with_limits_only():
    with Sandbox(LIMITS, unsafe=True) as box:
        cells = Cells(box)
        assert cells.run("hog = [bytearray(1 << 24) for _ in range(10_000)]")[0].startswith("MemoryError")
        folder = cells.printed("import os\nprint(os.getcwd())")
        assert os.path.isdir(folder)
        with pytest.raises(Stopped):
            cells.run("while True:\n    pass", seconds=0.5)
        assert Cells(box).printed("print('next')") == "next"
    assert not os.path.exists(folder)


@pytest.mark.slow
def test_a_session_with_torch_costs_no_import():
    pytest.importorskip("torch")
    with Sandbox() as box:
        box.open(arrays=True).close()
        session = box.open(arrays=True)
        start = time.monotonic()
        request = {"cell": "import torch\nprint(torch.ones(3).sum().item())", "label": "", "functions": [], "stubs": []}
        (line,) = session.ask([json.dumps(request).encode()], replies=1, seconds=10)
        assert wire.decode(line)[:2] == ["", "3.0\n"] and time.monotonic() - start < 0.5
        assert session.close() < 0.5
