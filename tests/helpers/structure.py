"""The structure of the repository, counted: `python tests/helpers/structure.py`.

Code lines are those with code: no docstrings, comments or blanks.
"""

import ast
import inspect
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "fastcollate"

ON_USE = ("inspect", "device", "ray", "cli")
"""Folders that functions of other folders import when they are called."""

TYPES, CALLS = "types", "calls"


def name_of(path):
    """Return the dotted name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """Return the folder of a module, or its own name if it lies at the top."""
    return module.split(".")[1] if "." in module else module


def imports_of(tree, kind="import"):
    """Yield the imported names of a module, each with its kind: import, types or calls."""
    for node in ast.iter_child_nodes(tree):
        of_node = kind
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            of_node = TYPES
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            of_node = CALLS
        if isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", of_node) for alias in node.names)
            yield node.module, of_node
        elif isinstance(node, ast.Import):
            yield from ((alias.name, of_node) for alias in node.names)
        yield from imports_of(node, of_node)


@cache
def edges():
    """Return the imports between modules of the package: (importer, imported, kind)."""
    modules = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = {
        (name, imported, kind)
        for name, path in modules.items()
        for imported, kind in imports_of(ast.parse(path.read_text()))
        if imported in modules and imported not in ("fastcollate", name)
    }
    # An import from a package is one of its module, if there is one of this name.
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    return {
        edge
        for edge in found
        if edge[1] not in packages
        or not any(one[0] == edge[0] and one[1].startswith(f"{edge[1]}.") for one in found)
    }


def circles(graph):
    """Return the sets of nodes that reach each other (Tarjan, 1972), if larger than one."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def graph_of(name, kinds=("import", TYPES, CALLS)):
    """Return the graph of imports, by `name` of modules, less those on use."""
    graph = defaultdict(set)
    for importer, imported, kind in edges():
        is_on_use = kind == CALLS and room_of(imported) in ON_USE
        if kind in kinds and not is_on_use and name(importer) != name(imported):
            graph[name(importer)].add(name(imported))
    return dict(graph)


def code_lines(path):
    """Count the lines of a Python file that hold code."""
    source = path.read_text()
    docs = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def modules_loaded():
    """Return the modules of the package that `import fastcollate` loads, without packages."""
    code = (
        "import sys, fastcollate\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.startswith('fastcollate.') and not hasattr(module, '__path__'):\n"
        "        print(name)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return told.stdout.split()


def public_names():
    """Return the names in the `__all__` of each public module."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names[name_of(path)] = ast.literal_eval(node.value)
    return names


def parameters():
    """Return the number of parameters of `build_batch`."""
    import fastcollate as fc

    return len(inspect.signature(fc.build_batch).parameters)


def count_lines(folder, ending):
    """Return the number of files below a folder, and of their lines."""
    files = (ROOT / folder).rglob(f"*{ending}")
    found = [
        path
        for path in files
        if not {"target", "tests", "benches"} & {*path.relative_to(ROOT / folder).parts}
    ]
    lengths = [len(path.read_text().splitlines()) for path in found]
    return len(found), sum(lengths), max(lengths, default=0)


def main():
    """Print the counts."""
    by_room, files = Counter(), Counter()
    for path in PACKAGE.rglob("*.py"):
        of_path = path.relative_to(PACKAGE).parts
        room = of_path[0] if len(of_path) > 1 else "(calls)"
        by_room[room] += code_lines(path)
        files[room] += 1
    print(f"{'folder':16}{'files':>6}{'code lines':>12}")
    for room in sorted(by_room):
        print(f"{room:16}{files[room]:6}{by_room[room]:12,}")
    print(f"{'python':16}{files.total():6}{by_room.total():12,}")
    for folder, ending in (("python/fastcollate", ".py"), ("rust", ".rs"), ("tests", ".py")):
        number, lines, longest = count_lines(folder, ending)
        print(f"{folder}: {number} files, {lines:,} lines, the longest {longest:,}")
    for title, name in (("folders", room_of), ("modules", str)):
        found = circles(graph_of(name))
        print(f"circles of {title}: {[len(one) for one in found] or 'none'}")
    print(f"modules loaded by import fastcollate: {len(modules_loaded())}")
    names = public_names()
    print(f"public names: {sum(map(len, names.values()))}")
    for module, of_module in names.items():
        print(f"  {module}: {len(of_module)}")
    print(f"parameters of build_batch: {parameters()}")


if __name__ == "__main__":
    main()
