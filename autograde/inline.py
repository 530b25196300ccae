"""Inline the toolkit: a cell's `from toolkit.x import y` becomes readable source of just what it needs.

Only the top-level definitions that the imported names reach are taken, in the order of the modules, so a
learner notebook is one self-contained file that carries nothing it does not use.
"""
import ast
import builtins
from dataclasses import dataclass

from autograde.errors import InputError
from autograde.paths import TOOLKIT

NO_TOOLS = "先运行最上面的课程工具单元格 · run the course tools cell at the top first"


@dataclass(frozen=True)
class _Part:
    """A top-level statement: the names it binds, the names it uses, its source with comments above."""

    binds: frozenset
    uses: frozenset
    source: str
    is_import: bool


def toolkit_imports(source):
    """{module: [names]} when a cell does nothing but import from the toolkit, else {}.

    Raises InputError for `import toolkit`, a renamed or a star import: the build could not inline these.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return {}
    wanted = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolkit."):
            if any(alias.asname or alias.name == "*" for alias in node.names):
                raise InputError(f"line {node.lineno}: import toolkit names one by one, without `as` or `*`")
            wanted.setdefault(node.module.removeprefix("toolkit."), []).extend(a.name for a in node.names)
        elif "toolkit" in ast.dump(node) and isinstance(node, (ast.Import, ast.ImportFrom)):
            raise InputError(f"line {node.lineno}: write `from toolkit.<module> import <name>`")
        elif wanted:
            raise InputError(f"line {node.lineno}: a cell that imports from the toolkit does nothing else")
    return wanted


def inlined(wanted):
    """Source that defines the wanted names ({module: [names]}) with all they need, and nothing else.

    Raises InputError for an unknown module or name, and where two modules define the same name.
    """
    modules = {}
    for module in wanted:
        _load(module, modules)
    owner, bound = {}, {}
    for module, parts in modules.items():
        for part in parts:
            for name in part.binds:
                # All modules share the notebook's namespace: a name means one thing, whoever binds it.
                meaning = part.source if part.is_import else f"{module}.py"
                if bound.setdefault(name, meaning) != meaning:
                    raise InputError(f"toolkit/{module}.py: {name} is also bound elsewhere: {bound[name]}")
                if not part.is_import:
                    owner[name] = module
    needed, queue = set(), [name for names in wanted.values() for name in names]
    for module, names in wanted.items():
        for name in names:
            if owner.get(name) != module:
                raise InputError(f"toolkit/{module}.py defines no {name}")
    while queue:
        name = queue.pop()
        if name in needed or name not in owner:
            continue
        needed.add(name)
        queue += [u for part in modules[owner[name]] if name in part.binds for u in part.uses]
    texts = [_module_text(module, parts, needed) for module, parts in modules.items()]
    return "\n\n\n".join(text for text in texts if text)


def imported(source):
    """Names of the packages that source imports, at its top or inside functions."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.split(".")[0] for name in names}


def as_module(source, names):
    """A cell that runs helper source as the module `course_tools`, and takes `names` from it.

    In a function of its own, with its own built-ins, the helpers cannot be reached by what a learner defines or
    imports in the notebook: `from copy import copy`, `list = [1, 2]`, a function called `check`.
    """
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    shadowed = ", ".join(sorted(used & set(dir(builtins))))
    return "\n".join([
        "def _course_tools():",
        "    import sys",
        "    import types",
        f"    from builtins import {shadowed}",
        "",
        indented(source),
        "",
        '    module = types.ModuleType("course_tools")',
        "    vars(module).update(locals())",
        '    sys.modules["course_tools"] = module',
        "",
        "",
        "_course_tools()",
        f"from course_tools import {', '.join(names)}",
    ])


def as_function(name, source, names):
    """A cell that runs source in a function which takes `names` from the tools, so that it leaves no names behind."""
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    tools = ", ".join(one for one in names if one in used)
    return "\n".join([
        f"def {name}():",
        "    try:",
        f"        from course_tools import {tools}",
        "    except ModuleNotFoundError:",
        f'        raise NameError("{NO_TOOLS}") from None',
        "",
        indented(source),
        "",
        "",
        f"{name}()",
    ])


def indented(source):
    """Source as the body of a function; the inside of a string of several lines stays as it is."""
    tree, inside = ast.parse(source), set()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str)
        if text and id(node) not in docstrings:
            inside.update(range(node.lineno + 1, node.end_lineno + 1))
    lines = enumerate(source.split("\n"), 1)
    return "\n".join(f"    {line}" if line.strip() and number not in inside else line for number, line in lines)


def _module_text(module, parts, needed):
    kept = [part for part in parts if not part.is_import and part.binds & needed]
    if not kept:
        return ""
    used = frozenset().union(*(part.uses for part in kept))
    imports = [part.source for part in parts if part.is_import and part.binds & used]
    return "\n".join([f"# ---- toolkit/{module}.py ----", *imports, "", *_spaced(kept)])


def _spaced(parts):
    """Sources in order, with two blank lines around functions and classes as in the module."""
    lines = []
    for number, part in enumerate(parts):
        block = part.source.lstrip().startswith(("def ", "class ", "@", "#"))
        if number and (block or lines[-1].startswith((" ", ")", "]", "}"))):
            lines += ["", ""]
        lines += part.source.split("\n")
    return lines


def _load(module, modules):
    """Read a module's parts into `modules`, those that it imports from the toolkit first."""
    if module in modules:
        return
    path = TOOLKIT / f"{module}.py"
    if not path.is_file():
        raise InputError(f"toolkit/{module}.py: no such toolkit module")
    source = path.read_text(encoding="utf-8")
    lines, parts, end = source.split("\n"), [], 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolkit."):
            _load(node.module.removeprefix("toolkit."), modules)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            parts += _import_parts(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            parts.append(_part(node, _text(lines, node, end), module))
        end = node.end_lineno
    modules[module] = parts


def _text(lines, node, previous_end):
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
    while first > previous_end and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first:node.end_lineno])


def _import_parts(node):
    """One part for each imported name, so that only those in use are taken."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            one = ast.ImportFrom(node.module, [alias], node.level)
        else:
            one = ast.Import([alias])
        name = (alias.asname or alias.name).split(".")[0]
        yield _Part(frozenset({name}), frozenset(), ast.unparse(one), True)


def _part(node, text, module):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        binds = {node.name}
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        # `_shorten.maxstring = 80` belongs to `_shorten`.
        binds = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    else:
        raise InputError(f"toolkit/{module}.py line {node.lineno}: not an import, a definition or an assignment")
    uses = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - binds
    return _Part(frozenset(binds), frozenset(uses), text, False)
