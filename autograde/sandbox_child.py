"""What runs inside the sandbox: a zygote that forks one process per submission, and the loop that serves it.

Started by sandbox.py as `python -I -S sandbox_child.py SOCKET CONFIG`, with wire.py beside it; it can see nothing
of the course. The zygote holds trusted code only. Each submission's process gets namespaces, a private /tmp and
limits of its own before it executes a line of the learner's.

The learner's code shares its process with `_serve` and can do to it what it likes: write replies, patch `json`, find
the socket. A forged reply can only answer the question that is being asked, as the learner's function might have
done anyway, so replies carry no secret, which code in the same process would find; the number that they carry only
tells late ones apart.
"""
import __future__

import ast
import asyncio  # noqa: F401
import bisect  # noqa: F401
import builtins
import collections  # noqa: F401
import contextlib
import copy
import ctypes
import dataclasses  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import enum  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import importlib.machinery
import io
import itertools  # noqa: F401
import json
import marshal
import math  # noqa: F401
import operator
import os
import platform
import random  # noqa: F401
import resource
import select
import signal
import socket
import statistics  # noqa: F401
import string  # noqa: F401
import struct
import sys
import textwrap  # noqa: F401
import time
import types
import typing  # noqa: F401

# Modules imported above for nothing but speed: a learner's import of them then costs nothing.

NOBODY = 65534
WATCH_S = 0.2  # how often the zygote looks at the memory of a submission that takes long
ABSENT = ("IPython", "ipywidgets", "matplotlib", "plotly", "seaborn", "toolkit")  # pictures and widgets do nothing here
STDOUT_LIMIT = 1 << 16
BATCH_S = 0.5  # after this long the rest of a batch is left to be asked again, one by one
MAX_MESSAGE = 400

# ---- the zygote ----

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _NOEXEC, _REC, _PRIVATE = 2, 4, 8, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def main(control_fd, config):
    """Fork a process for each message that brings a socket; `config` comes from sandbox.Limits and the mode."""
    control = socket.socket(fileno=control_fd)
    _preload(config["preload"])
    home = os.open("/proc/self/ns/pid", os.O_RDONLY) if config["nested"] else -1
    gc.collect()
    gc.freeze()  # the pages of what is loaded stay shared
    control.send(f"ready {time.process_time()}".encode())
    while True:
        message, sockets, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        ours, begin = _pages(os.getpid(), 1), time.process_time()
        child = _fork(config, sockets[0], home)
        os.close(sockets[0])
        why, ended = "", b""
        while not ended:  # until the grader has seen enough
            if select.select([control], [], [], WATCH_S)[0]:
                ended = control.recv(64)
                break
            if not why and config["isolated"] and _others_memory(ours) > config["total_mb"] << 20:
                why = "memory"
                _kill(config, child)
            elif _dead_within(0, child):
                _kill(config, child)  # what it has left behind
        if ended == b"died" and not why and not _dead_within(0.1, child):
            why = "hung up"  # it has closed its socket, and lives
        _kill(config, child)
        _, status, used = os.wait4(child, 0)
        if not ended:  # the grader has gone
            return
        cpu_s = used.ru_utime + used.ru_stime + time.process_time() - begin
        control.send(json.dumps([os.waitstatus_to_exitcode(status), why, cpu_s]).encode())


def _preload(packages):
    """Site packages come last and without their .pth files; arrays are imported once for all submissions."""
    for name in packages:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch:
        torch.set_num_threads(1)


def _fork(config, fd, home):
    """The pid of a new process, PID 1 of a namespace of its own, that serves one submission on `fd`."""
    if config["nested"]:
        _call("unshare", _NEWPID)
    child = os.fork()
    if child:
        if config["nested"]:
            _call("setns", home, _NEWPID)
        return child
    try:
        os.dup2(fd, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        connection = socket.socket(fileno=3)
        try:
            _lock_up(config)
        except OSError as error:
            connection.sendall(f"cannot isolate: {error}\n".encode())
            os._exit(1)
        connection.sendall(b"ready\n")
        _serve(connection)
    finally:
        os._exit(0)  # never back into the zygote's loop


def _dead_within(seconds, child):
    end = time.monotonic() + seconds
    while not (dead := os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and time.monotonic() < end:
        time.sleep(0.001)
    return bool(dead)


def _kill(config, child):
    """End the submission's processes: PID 1 of a namespace takes the others with it, elsewhere each is told."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)
        if config["isolated"] and not config["nested"]:
            os.kill(-1, signal.SIGKILL)  # everybody in this sandbox but bubblewrap and us
        elif not config["isolated"]:
            os.killpg(child, signal.SIGKILL)


def _pages(pid, column):
    """Bytes of a process: all that it has mapped (column 0), or what it holds in memory (column 1)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[column]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0  # it has just ended


def _others_memory(ours):
    """Bytes that the processes of the submission hold beyond what they share with the zygote."""
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    return sum(max(0, _pages(pid, 1) - ours) for pid in others)


# ---- from here on in the submission's own process ----

def _call(name, *arguments):
    """A libc call. Raises OSError where it fails."""
    if getattr(_libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _lock_up(config):
    """Namespaces, mounts, user, limits, capabilities, system calls: in this order, all before learner code."""
    tmp_mb = config["tmp_mb"]
    if config["nested"]:
        _call("unshare", _NEWNS | _NEWIPC | _NEWUTS)
        _call("mount", None, b"/", None, _REC | _PRIVATE, None)
        _call("mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)
        options = f"size={tmp_mb}m,nr_inodes=4096,mode=1777".encode()
        _call("mount", b"tmpfs", b"/tmp", b"tmpfs", _NOSUID | _NODEV, options)
    if config["isolated"]:
        os.chmod("/tmp", 0o1777)
        if config["root"]:  # limits on processes do not bind root
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            _call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is ours again
    if config["nested"]:
        _own_user_namespace()
    if config["isolated"]:
        os.makedirs("/tmp/work")
        _drop_capabilities()
        _filter_system_calls()
    folder = config["folder"]
    os.environ.update(HOME=config["home"], TMPDIR=folder)
    os.chdir(f"{folder}/work")
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: config["cpu_s"],
        resource.RLIMIT_AS: _pages(os.getpid(), 0) + (config["memory_mb"] << 20),
        resource.RLIMIT_FSIZE: tmp_mb << 20,
        resource.RLIMIT_NOFILE: 128,
        # Outside a namespace all processes of this user count, so there it only stops the worst.
        resource.RLIMIT_NPROC: config["processes"] if config["isolated"] else 2000,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file too large is an OSError


def _own_user_namespace():
    """Processes are counted per namespace, and none may be made below this one."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def _drop_capabilities():
    _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)
    _call("capset", header, ctypes.create_string_buffer(24))


# Memory that no limit counts, other namespaces, doors into the kernel that no course needs; on x86_64 and arm64.
_DENIED = {
    "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97),
    "setns": (308, 268), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "io_uring_setup": (425, 425),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
}
_MACHINES = {"x86_64": (0, 0xC000003E, 56, 41), "aarch64": (1, 0xC00000B7, 220, 198)}  # column, arch, clone, socket


def _filter_system_calls():
    """A seccomp filter. On other machines than these two, namespaces and limits have to do."""
    if platform.machine() not in _MACHINES:
        return
    column, arch, clone, sockets = _MACHINES[platform.machine()]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse, unknown = 0x7FFF0000, 0x80000000, 0x50001, 0x50026  # EPERM, ENOSYS
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (answer, 0, 0, kill), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, refuse)]
    for numbers in _DENIED.values():
        program += [(equal, 0, 1, numbers[column]), (answer, 0, 0, refuse)]
    # clone3 keeps its flags in memory: libc falls back to clone, whose flags are in a register.
    program += [(equal, 0, 1, 435), (answer, 0, 0, unknown)]
    program += [(equal, 0, 4, clone), (load, 0, 0, 16), (any_bit, 0, 1, 0x7E020000), (answer, 0, 0, refuse)]
    program += [(answer, 0, 0, allow)]
    # Sockets of the machine's own kinds are in no namespace (vsock): only unix, IPv4 and IPv6.
    program += [(equal, 0, 5, sockets), (load, 0, 0, 16), (equal, 3, 0, 1), (equal, 2, 0, 2), (equal, 1, 0, 10)]
    program += [(answer, 0, 0, refuse), (answer, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _call("prctl", 22, 2, header, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


class _Nothing:
    """Stands for plots, widgets, the shell and the course's own helpers: whatever is asked of it, nothing happens."""

    def __init__(self, name="nothing"):
        self.__dict__["__name__"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name)

    def __call__(self, *args, **kwargs):
        # `fig, ax = plt.subplots()` is the one result that everybody unpacks.
        return (_Nothing("figure"), _Nothing("axes")) if self.__name__ == "subplots" else _Nothing(self.__name__)

    def __setattr__(self, name, value):
        pass

    __setitem__ = __delitem__ = __setattr__

    def __getitem__(self, key):
        return _Nothing(self.__name__)

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # `with demo("T1"):` shows an error and goes on.
        return error[:1] != (None,) and issubclass(error[0], Exception)

    def __repr__(self):
        return f"<no {self.__name__} while grading>"


class _Shell(_Nothing):
    """`get_ipython()`: magics and shell lines come here, as IPython's transformer writes them."""

    def __init__(self, namespace):
        self.__dict__.update(__name__="shell", user_ns=namespace)

    def run_line_magic(self, name, line, *args, **kwargs):
        if name in ("time", "timeit"):
            statement = line if name == "time" else ""
            exec(statement.strip(), self.user_ns)

    def run_cell_magic(self, *args, **kwargs):
        return None

    def getoutput(self, *args, **kwargs):
        return []

    system = magic = run_cell_magic


class _Absent:
    """Finder and loader of the packages that do nothing here."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, _Absent, is_package=True)

    @staticmethod
    def create_module(spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _attribute(name)
        return module

    @staticmethod
    def exec_module(module):
        pass


def _attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "get_ipython":
        return builtins.get_ipython
    return _Nothing(name)


class _Printed(io.TextIOBase):
    """Keeps the beginning of what is printed."""

    def __init__(self):
        self.text, self.room = [], STDOUT_LIMIT

    def write(self, text):
        text = str(text)
        if self.room > 0:
            self.text.append(text[:self.room])
        self.room -= len(text)
        return len(text)

    def take(self):
        """What was printed since the last time."""
        taken, self.text, self.room = "".join(self.text), [], STDOUT_LIMIT
        return taken

    def writable(self):
        return True


def _serve(connection):
    """Execute cells and answer calls until the grader hangs up."""
    namespace = types.ModuleType("__main__")
    sys.modules["__main__"] = namespace
    namespace = namespace.__dict__
    printed = sys.stdout = sys.stderr = _Printed()
    sys.argv = [""]
    sys.meta_path.insert(0, _Absent)
    builtins.exit = builtins.quit = sys.exit
    shell = _Shell(namespace)
    builtins.get_ipython = lambda: shell
    builtins.display = _Nothing("display")
    builtins.input = _no_input
    builtins.help = _Nothing("help")
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    requests = connection.makefile("rb", buffering=1 << 16)
    answers = io.BytesIO()
    for number in requests:
        request = json.loads(requests.readline())
        answers.write(number)
        if "cell" in request:
            for name in request["stubs"]:
                namespace.setdefault(name, _Nothing(name))
            error, flags, state = _run_cell(request, namespace, flags)
            names = [name for name in request["functions"] if callable(namespace.get(name))]
            reply = wire.encode([error, printed.take(), names, state])
            answers.write(reply.encode() + b"\n")
        else:
            tables = wire.decode(requests.readline())
            end = time.monotonic() + BATCH_S
            for _ in range(request["calls"]):
                call = requests.readline()
                late = time.monotonic() > end
                answers.write(b"?\n" if late else _answer(namespace, request["name"], call, tables))
            printed.take()
        connection.sendall(answers.getvalue())
        answers.seek(0)
        answers.truncate()


def _no_input(prompt=""):
    raise EOFError("nobody is there to answer while grading")


def _run_cell(request, namespace, flags):
    """("" or what went wrong, compiler flags for the cells that follow, does the cell keep state between calls)."""
    state = False
    try:
        tree = compile(request["cell"], request["label"], "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        state = _keeps_state(tree)
        code = compile(tree, request["label"], "exec", flags, dont_inherit=True)
        for name in __future__.all_feature_names:
            flags |= code.co_flags & getattr(__future__, name).compiler_flag
        result = eval(code, namespace)
        if code.co_flags & 0x80:  # CO_COROUTINE: a top-level await
            asyncio.run(result)
    except BaseException as error:
        return _describe(error), flags, state
    return "", flags, state


_HARMLESS = ("all any dict enumerate frozenset isinstance iter len list max min range reversed set sorted str sum "
             "tuple zip copy deepcopy get items keys values index count").split()
_STATEFUL = {"globals", "vars", "setattr", "exec", "eval", "open", "next", "random"}


def _keeps_state(tree):
    """May a function's result depend on the calls before it? Then the grader asks one call at a time.

    Errs towards yes. It is a matter of speed and of the very same lines as in a notebook, not of safety.
    """
    shared = {name.id for statement in tree.body if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign))
              and not isinstance(statement.value, (ast.Constant, ast.Name, ast.UnaryOp, type(None)))
              for name in ast.walk(statement) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return any(_touches_state(node, shared) for node in ast.walk(tree)
               if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)))


def _touches_state(function, shared):
    if isinstance(function, ast.ClassDef):
        containers = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
        return any(isinstance(getattr(line, "value", None), containers) for line in function.body)
    defaults = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
    plain = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.Tuple)
    if not all(isinstance(default, plain) for default in defaults):
        return True
    read = set()  # names of shared values in places where nothing can change them
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Name) and node.id in _STATEFUL:
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            read.add(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in _HARMLESS:
            read.add(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _HARMLESS:
            read.update(node.args)
        elif isinstance(node, ast.Compare):
            read.update([node.left, *node.comparators])
        elif isinstance(node, (ast.For, ast.comprehension)):
            read.add(node.iter)
    return any(isinstance(node, ast.Name) and node.id in shared and node not in read for node in ast.walk(function))


def _describe(error):
    try:
        return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
    except BaseException:
        return "an error without words"


def _answer(namespace, name, line, tables):
    """One line: `v` value, or `e` error; behind it the arguments where the call has changed them."""
    try:
        args, kwargs = wire.decode(line, arrays=True)
        before = _snapshot(args)
        with _recorded(namespace, tables) if tables else contextlib.nullcontext():
            reply = _value(namespace, name, args, kwargs)
        if _snapshot(args) != before or before is None:
            reply += "\t" + wire.encode(args)
    except BaseException as error:  # also of an encoder that the learner has patched
        reply = _error(wire.WireError(_describe(error)), "")
    return reply.encode() + b"\n"


def _value(namespace, name, args, kwargs):
    try:
        result = namespace[name](*args, **kwargs)
    except BaseException as error:
        return _error(error, _place(error))
    try:
        return "v" + wire.encode(result)
    except BaseException as error:
        return _error(wire.WireError(f"the result: {_describe(error)}"), "")


def _error(error, place):
    words = _describe(error)
    bases = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:
        message = ""
    return "e" + wire.encode([bases, message, words + place])


def _place(error):
    """Where the learner's own code raised it, as checks.py words it."""
    last = first = error.__traceback__  # the first frame is ours
    while last and last.tb_next:
        last = last.tb_next
    return "" if last is first else f" (line {last.tb_lineno} in {last.tb_frame.f_code.co_name[:80]})"


def _snapshot(args):
    """Bytes that differ when the arguments do; None where it cannot tell."""
    try:
        return marshal.dumps(args, 2)
    except ValueError:
        return None


@contextlib.contextmanager
def _recorded(namespace, tables):
    """For one call, functions of other TODOs give recorded right answers."""
    mine = {name: namespace.get(name) for name in tables}
    namespace.update({name: _router(name, *table) for name, table in tables.items()})
    try:
        yield
    finally:
        namespace.update(mine)


def _router(name, parameters, answers):
    """Looks recorded answers up as `_recorded` of checks.py does it."""
    def answer(*args, **kwargs):
        given = [*args, *(kwargs[parameter] for parameter in parameters[len(args):] if parameter in kwargs)]
        given = wire.flat(given)
        for alike in (operator.eq, _covers):
            for known, result in answers:
                if len(known) == len(given) and all(map(alike, given, known)):
                    return copy.deepcopy(result)
        raise LookupError(f"{name} was called with arguments that are not in the task")
    return answer


def _covers(given, known):
    """Is it the known dict with some fields of the learner's added?"""
    if not (isinstance(given, dict) and isinstance(known, dict)):
        return given == known
    return all(key in given and given[key] == value for key, value in known.items())


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import wire

    sys.path.pop(0)
    _config = json.loads(sys.argv[2])
    sys.path += _config["site_packages"]
    os.environ.clear()
    os.environ.update(PATH="/usr/bin:/bin", LANG="C.UTF-8", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    time.tzset()
    main(int(sys.argv[1]), _config)
