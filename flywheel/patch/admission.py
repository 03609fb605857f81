"""What the code of a patch may not do, read from its syntax. Pure.

It explains early what later gates would only find, and says where. It is no proof: Python can hide
anything, so the gates and the loop's own clock come after it. Only what the patch brings is held
against it; what a file did before is the incumbent's.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from flywheel.patch.paths import Reason

IMPORTS = (
    "__future__", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum",
    "functools", "itertools", "math", "numpy", "operator", "torch", "triton", "types", "typing",
    "engine", "kernels",
)  # fmt: skip
# What of our own packages measures or judges.
OFF_LIMITS = (
    "engine.measure", "engine.suite", "engine.profile", "engine.bench", "engine.server",
    "engine.train", "engine.heads", "engine.inventory", "kernels.bench", "tests",
)  # fmt: skip
WHY_NOT = {
    **dict.fromkeys(("time", "datetime", "timeit", "sched"), "it would read the clock"),
    **dict.fromkeys(
        ("os", "pathlib", "io", "tempfile", "shutil", "glob", "mmap", "pickle", "sqlite3", "json"),
        "it would read or write files",
    ),
    **dict.fromkeys(
        ("subprocess", "multiprocessing", "threading", "concurrent", "asyncio", "signal"),
        "it would start something beside the run",
    ),
    **dict.fromkeys(("socket", "http", "urllib", "requests", "httpx"), "it would use the network"),
    **dict.fromkeys(
        ("sys", "inspect", "gc", "ctypes", "importlib", "builtins", "traceback", "ast", "runpy",
         "unittest", "cffi"),
        "it would look into the program that measures it",
    ),
    **dict.fromkeys(("random", "secrets", "uuid"), "it would draw what nobody can draw again"),
}  # fmt: skip
CALLS = {
    **dict.fromkeys(("open", "input"), "it would read or write files"),
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "it would run code not shown here"),
    **dict.fromkeys(
        ("globals", "locals", "vars", "setattr", "delattr", "breakpoint"),
        "it would reach into other code",
    ),
}
_REMEMBERS = "it would remember from one generation to the next"
# Attributes by which a permitted module leads to a forbidden one.
ATTRIBUTES = {
    **dict.fromkeys(
        ("cpp_extension", "load_library", "hub", "from_file", "fromfile", "tofile", "memmap",
         "savez", "loadtxt", "genfromtxt"),
        "it would read or write files",
    ),
    **dict.fromkeys(
        ("globaltimer", "clock64", "Event", "profiler", "benchmark", "do_bench", "monotonic",
         "monotonic_ns", "perf_counter", "perf_counter_ns", "time_ns"),
        "it would read the clock",
    ),
    **dict.fromkeys(("lru_cache", "cache", "cached_property"), _REMEMBERS),
}  # fmt: skip
_MODULES = {*WHY_NOT} - {"compile", "signal", "cache"}
_FILES = tuple(f"{m}.{f}" for m in ("torch", "numpy", "np") for f in ("load", "save"))
_CLOCK_WORDS = ("%clock", "%globaltimer")
_PLAIN_DUNDERS = ("__init__", "__post_init__", "__new__", "__name__", "__all__")
# A table of this many constants is an answer that was known before the question.
TABLE = 64
TEXT = 400
_MUTABLE = ("dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter", "bytearray")
_CHANGES = ("append", "add", "update", "setdefault", "extend", "insert", "pop", "popitem",
            "__setitem__", "appendleft")  # fmt: skip


def reasons(path: str, old: str, new: str) -> tuple[Reason, ...]:
    """What the new text of a Python file does that it may not, and that the old one did not do."""
    try:
        brought = sorted(_found(ast.parse(new)))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return (Reason(path, line, f"it is no Python: {getattr(error, 'msg', error)}"),)
    except (RecursionError, MemoryError):
        return (Reason(path, None, "it is nested too deeply to be read"),)
    try:
        known = Counter(what for _, what in _found(ast.parse(old)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        known = Counter()
    out = []
    for line, what in brought:
        if known[what] > 0:
            known[what] -= 1
        else:
            out.append(Reason(path, line, what))
    return tuple(out)


def _found(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that a patch may not bring."""
    foreign = _foreign_names(tree)
    shared = _shared_containers(tree)
    docstrings = _docstrings(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        yield from ((line, what) for what in _imports(node))
        yield from ((line, what) for what in _names(node))
        yield from ((line, what) for what in _replacements(node, foreign))
        yield from ((line, what) for what in _memories(node, shared))
        if id(node) not in docstrings:
            yield from ((line, what) for what in _tables(node))


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            yield "it imports by a relative name"
            return
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for module in modules:
        top = module.partition(".")[0]
        if any(module == off or module.startswith(f"{off}.") for off in OFF_LIMITS):
            yield f"it imports {module}, which measures or judges"
        elif top not in IMPORTS:
            why = WHY_NOT.get(top, "it is not among the modules that a patch may import")
            yield f"it imports {top}: {why}"
        else:
            for part in module.split(".")[1:]:
                if part in WHY_NOT or part in ATTRIBUTES:
                    yield f"it imports {module}: {WHY_NOT.get(part) or ATTRIBUTES[part]}"


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if node.id in CALLS:
            yield f"it uses {node.id}: {CALLS[node.id]}"
        elif node.id.startswith("__") and node.id not in _PLAIN_DUNDERS:
            yield f"it uses {node.id}: it would reach into other code"
    elif isinstance(node, ast.Attribute):
        name = node.attr
        if ast.unparse(node) in OFF_LIMITS:
            yield f"it uses {ast.unparse(node)}, which measures or judges"
        elif name in ATTRIBUTES:
            yield f"it uses {name}: {ATTRIBUTES[name]}"
        elif name in _MODULES and isinstance(node.ctx, ast.Load):
            yield f"it uses {name}: {WHY_NOT[name]}"
        elif name.startswith("__") and name.endswith("__") and name not in _PLAIN_DUNDERS:
            yield f"it uses {name}: it would reach into other code"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        asked = node.args[1] if node.func.id == "getattr" and len(node.args) > 1 else None
        if asked is not None and not isinstance(asked, ast.Constant):
            yield "it uses getattr with a computed name: it would reach into other code"
        elif isinstance(asked, ast.Constant) and (
            str(asked.value) in {*ATTRIBUTES, *_MODULES} or str(asked.value).startswith("__")
        ):
            yield f"it uses getattr for {asked.value!r}: it would reach into other code"
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in _FILES:
        yield f"it uses {ast.unparse(node.func)}: it would read or write files"


def _foreign_names(tree: ast.Module) -> set[str]:
    """Names that stand for other modules' things."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _replacements(node: ast.AST, foreign: set[str]) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if root is target:
            continue
        if not isinstance(root, ast.Name) or root.id in foreign:
            yield f"it changes {ast.unparse(target)}: it would replace other modules' things"


def _shared_containers(tree: ast.Module) -> set[str]:
    """Names, of the module or of its classes, that are bound to something that can be filled."""
    found: set[str] = set()
    bodies = [tree.body, *(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
    for body in bodies:
        for node in body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and _fillable(value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return found


def _fillable(value: ast.AST | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    called = value.func.attr if isinstance(value.func, ast.Attribute) else (
        value.func.id if isinstance(value.func, ast.Name) else ""
    )
    return called in _MUTABLE or called.startswith("Weak")


def _memories(node: ast.AST, shared: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Global):
        yield f"it writes to global {', '.join(node.names)}: {_REMEMBERS}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None))
        if any(_fillable(default) for default in given):
            yield f"it has a default argument that can be filled: {_REMEMBERS}"
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        if (name := _last_name(node.value)) in shared:
            yield f"it fills {name}: {_REMEMBERS}"
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CHANGES
        and (name := _last_name(node.func.value)) in shared
    ):
        yield f"it fills {name}: {_REMEMBERS}"


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _docstrings(tree: ast.Module) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def _tables(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        items = [*node.keys, *node.values]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = list(node.elts)
    else:
        items = []
    if len(items) > TABLE and all(isinstance(i, ast.Constant | ast.UnaryOp) for i in items):
        yield f"it holds a table of more than {TABLE} constants: answers cannot be brought along"
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str | bytes):
            if len(node.value) > TEXT:
                yield f"it holds a text of more than {TEXT} characters"
            text = node.value if isinstance(node.value, str) else ""
            if any(word in text for word in _CLOCK_WORDS):
                yield "it reads the device's clock"
        elif isinstance(node.value, int) and node.value.bit_length() > 64:
            yield "it holds a number of more than 64 bits: answers cannot be brought along"
