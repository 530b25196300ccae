"""Understand a cell's code without running it: what it defines, what it needs, where it can be split.

Everything here is given code of strangers: only the compiler's own reading of it is used, nothing is executed.
"""
import ast
import builtins
import re
import symtable
import warnings
from dataclasses import dataclass
from functools import lru_cache

LONGEST, MOST_STATEMENTS = 400_000, 5_000  # of one cell; above, reading it could keep a grader busy
_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
_IN_PLACE = ("time", "capture", "prun", "timeit")  # cell magics whose body is Python that runs here
_SHELL_CALL = re.compile(r"get_ipython\(\)\.(run_line_magic|run_cell_magic|system|getoutput|magic)\((.*)\)\s*$", re.M)
_MAYBE_MAGIC = re.compile(r"^\s*[!%?,;/]|\?\s*$|=\s*[!%]", re.M)
_MOST_MAGICS = 5_000_000  # characters times magic lines: IPython reads the whole cell again for every one
_SETTINGS = re.compile(r"\b(setrecursionlimit|getcontext|setcontext|set_int_max_str_digits)\b")
_BY_NAME = {"globals", "eval", "exec", "vars"}


@dataclass(frozen=True)
class Piece:
    """Code that compiles, by the global names in it.

    binds: what it defines, imports or assigns. now: what it reads when it runs, before it binds that itself.
    later: what its functions read when they are called. changes: whose values it changes when it runs.
    """

    source: str
    binds: frozenset
    now: frozenset
    later: frozenset
    changes: frozenset

    @property
    def uses(self):
        """All names that it reads at some time."""
        return self.now | self.later

    @property
    def is_setting(self):
        """Does it change how Python itself computes (recursion limit, decimal precision)?"""
        return bool(_SETTINGS.search(self.source))

    @property
    def looks_up_names(self):
        """Does it look names up as text, so that what it needs cannot be told?"""
        return bool(self.uses & _BY_NAME)


@lru_cache(maxsize=4096)
def analyse(source):
    """The Piece of a source. Raises SyntaxError, also for what Python's parser gives up on."""
    tree = parse(source)
    binds, now, later = set(), set(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        top = symtable.symtable(source, "<cell>", "exec")
    for symbol in top.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            binds.add(symbol.get_name())
        if symbol.is_referenced():
            now.add(symbol.get_name())
    try:
        _globals_of(top, binds, now, later)
    except RecursionError:
        raise SyntaxError("nested too deeply") from None
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body):
        binds.add("*")
    now -= _bound_first(tree, binds & now)
    return Piece(source, frozenset(binds), frozenset(now), frozenset(later), frozenset(_changed(tree)))


def parse(source):
    """The syntax tree of code that compiles. Raises SyntaxError otherwise, whatever the parser's own complaint."""
    tree, error = _parsed(source)
    if error:
        raise SyntaxError(*error)
    return tree


@lru_cache(maxsize=512)
def _parsed(source):
    """(tree, None), or (None, what a SyntaxError is made of): failures are remembered too."""
    if len(source) > LONGEST:
        return None, (f"longer than {LONGEST:,} characters",)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" and the like
            tree = ast.parse(source)
            if len(tree.body) > MOST_STATEMENTS:
                return None, (f"more than {MOST_STATEMENTS:,} statements",)
            compile(source, "<cell>", "exec", dont_inherit=True, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            return tree, None
    except SyntaxError as error:
        return None, error.args
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, (str(error) or type(error).__name__,)


def _bound_first(tree, names):
    """Those of the names that a statement binds before another one reads them."""
    found, read = set(), set()
    for statement in tree.body if names else ():
        loads, stores = set(), set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
            elif isinstance(node, ast.alias):
                stores.add((node.asname or node.name).split(".")[0])
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            loads, stores = loads - {statement.name}, {statement.name}  # a function may call itself
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            loads -= stores  # `for x in …: print(x)`
        read |= loads - found
        found |= (stores & names) - read
    return found


def _globals_of(table, binds, now, later):
    """Collect the global names that inner scopes use; classes and comprehensions run at once, functions later."""
    for child in table.get_children():
        at_once = child.get_type() == "class" or child.get_name() in _COMPREHENSIONS
        for symbol in child.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                (now if at_once else later).add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                binds.add(symbol.get_name())
        _globals_of(child, binds, now if at_once else later, later)


def _changed(tree):
    """Names whose values the code changes when it runs: `x[0] = …`, `x.a = …`, `x += …`, `x.update(…)`, `fill(x)`."""
    queue = list(tree.body)
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        queue += ast.iter_child_nodes(node)
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield _root(node)
        elif isinstance(node, ast.AugAssign):
            yield _root(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield _root(node.func)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
            yield from (_root(argument) for argument in node.args)


def _root(node):
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def spans(source):
    """[(first line, last line, nodes), …] of the top-level statements, lines from 0, last excluded. Raises SyntaxError.

    Statements that share a line stand in one span.
    """
    found = []
    for node in parse(source).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        nodes = [node]
        if found and first < found[-1][1]:
            first, _, before = found.pop()
            nodes = [*before, node]
        found.append((first, node.end_lineno, nodes))
    return found


def statements(text):
    """The top-level statements of a script with the comments above them; of broken code, its blocks."""
    try:
        ends = [end for _, end, _ in spans(text)]
    except SyntaxError:
        return fragments(text) or [text]
    lines, start, found = text.split("\n"), 0, []
    for end in ends:
        found.append("\n".join(lines[start:end]).strip("\n"))
        start = end
    return found


def fragments(text):
    """Broken code cut where a line at the left margin starts a statement; [] where quotes make that unsafe."""
    blocks, open_decorator, quoted = [[]], False, False
    for line in text.split("\n"):
        starts = re.match(r"(@|def |class |async def )", line) and not open_decorator
        leaves = re.match(r"[^\s#)\]}]", line) and blocks[-1] and blocks[-1][-1].startswith((" ", "\t"))
        follows = re.match(r"(else|elif|except|finally)\b", line)
        if (starts or leaves) and not follows and not quoted:
            blocks.append([])
        quoted ^= bool((line.count('"""') + line.count("'''")) % 2)
        if line.strip():
            open_decorator = line.startswith("@")
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks[-1].append(" " if blocks[-1][-1].startswith((" ", "\t")) else "")
    pieces = ["\n".join(block).rstrip() for block in blocks if any(line.strip() for line in block)]
    # A triple quote that opens in one block and closes in another would turn text into code.
    if any(piece.count(quotes) % 2 for piece in pieces for quotes in ('"""', "'''")):
        return []
    return pieces


def without(source, drop):
    """The source with those top-level statements blanked for which `drop(node)` holds; line numbers stay."""
    lines = source.split("\n")
    for first, end, nodes in spans(source):
        if all(drop(node) for node in nodes):
            lines[first:end] = [""] * (end - first)
    return "\n".join(lines).rstrip()


def plain_python(source):
    """(code, had_magics): IPython's magics, shell lines and prompts understood as plain Python that does nothing else.

    Code under `%%time` and its like stays; what other cell magics hold (`%%bash`, `%%writefile`) is not Python: "".
    """
    try:
        parse(source)
        if "get_ipython()" not in source:
            return source, False
    except SyntaxError:
        pass
    blank = ""
    while magic := re.match(r"\s*%%(\w+).*\n?", source):
        if magic[1] not in _IN_PLACE or len(blank) > 10:
            return "", True
        blank += "\n" * magic[0].count("\n")
        source = source[magic.end():]
    if blank:
        return blank + plain_python(source)[0], True
    changed = _SHELL_CALL.sub(_harmless, _transformed(source))
    return (changed.rstrip("\n"), True) if changed.rstrip("\n") != source.rstrip("\n") else (source, False)


def _transformed(source):
    if len(source) * (1 + len(_MAYBE_MAGIC.findall(source))) > _MOST_MAGICS:
        return source
    from IPython.core.inputtransformer2 import TransformerManager  # slow to import, and seldom needed

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TransformerManager().transform_cell(source.rstrip("\n") + "\n")
    except Exception:  # IPython's transformer is no parser: on broken code it may raise anything
        return source


def _harmless(match):
    """`%time x = f()` is the code x = f(); any other magic or shell line is None."""
    try:
        arguments = ast.literal_eval(f"({match[2]},)")
    except (SyntaxError, ValueError):
        return "None"
    timed = match[1] == "run_line_magic" and arguments[0] == "time"
    return arguments[1] if timed and len(arguments) > 1 and "\n" not in arguments[1] else "None"


@lru_cache(maxsize=4096)
def defined(source):
    """The names that a source binds at its top level; of broken code, those it looks like defining."""
    try:
        return analyse(source).binds
    except SyntaxError:
        found = re.findall(r"^(?:async\s+)?(?:def|class)\s+(\w+)|^(\w+)\s*=[^=]", source, re.M)
        return frozenset(name for pair in found for name in pair if name)


def is_unfinished(source, function, stub):
    """Is `function` in this source not written yet? `stub` is the source it was handed out in.

    Unfinished: it looks as handed out, or it can never return: no `return`, and it raises NotImplementedError or
    does nothing at all.
    """
    try:
        mine, given = _function(source, function), _function(stub, function)
    except SyntaxError:
        return "NotImplementedError" in source and not re.search(r"\breturn\b", source)
    if mine is None:
        return function not in defined(source)
    if given is not None and len(mine.body) == len(given.body) and shape(mine) == shape(given):
        return True
    inner = list(_own(mine))
    if any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in inner):
        return False
    raises = any(isinstance(n, ast.Name) and n.id == "NotImplementedError" for n in inner)
    idle = all(isinstance(n, ast.Pass) or isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
               for n in mine.body)
    return raises or idle


def _function(source, name):
    """The last top-level definition of a function, or None. Raises SyntaxError."""
    found = [n for n in parse(source).body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name]
    return found[-1] if found else None


def _own(function):
    """All nodes of a function's body, those of functions inside it left out."""
    queue = list(function.body)
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)

def shape(tree):
    """What a syntax tree says, layout and comments aside: equal for equal code. (`ast.dump` could recurse too deep.)"""
    return tuple(
        (type(node).__name__, tuple(
            len(value) if isinstance(value, list) else value if not isinstance(value, ast.AST) else 0
            for _, value in ast.iter_fields(node)
        ), tuple(node.names) if isinstance(node, (ast.Global, ast.Nonlocal)) else ())
        for node in ast.walk(tree)
    )
