"""The tree as the rules see it: which packages there are, and each of their files, parsed."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {
    "icecore": "icecore",
    "icecore_replication": "replication/icecore_replication",
    "icecore_node": "node/icecore_node",
    "icecore_coordinator": "coordinator/icecore_coordinator",
}
"""The folder of each import name."""
CODE_FOLDERS = (*FOLDERS.values(), "tests", "benchmarks", "examples", "scripts")
GENERATED = ("icecore/v1/",)


@dataclass(frozen=True)
class Module:
    """One parsed Python file; ``path`` is relative to the root, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Return how it is imported; a package by its own name."""
        path = self.path
        for package, folder in FOLDERS.items():
            if path.startswith(folder + "/"):
                path = package + path.removeprefix(folder)
        return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The first part of its name."""
        return self.name.split(".")[0]


Rule = Callable[[Module], Iterator[str]]


def parse(path: str, text: str) -> Module:
    """Raises SyntaxError."""
    return Module(path, text, ast.parse(text, path))


@lru_cache(maxsize=1)
def all_modules() -> tuple[Module, ...]:
    """Every file of ours but generated ones."""
    paths = [
        path.relative_to(ROOT).as_posix()
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return tuple(
        parse(path, (ROOT / path).read_text()) for path in paths if not path.startswith(GENERATED)
    )


def production() -> tuple[Module, ...]:
    """The files that are installed."""
    return tuple(each for each in all_modules() if each.package in FOLDERS)


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import; ``from a import b`` is ``a.b``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.name.split(".")[: -node.level]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def imports(modules: tuple[Module, ...]) -> dict[str, set[str]]:
    """Return the names of the modules that each of these modules imports, among themselves."""
    known = {each.name for each in modules}
    found: dict[str, set[str]] = {}
    for module in modules:
        names = {name for _, name in imported_names(module)}
        # A submodule counts as itself, any other name as the module that defines it.
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        found[module.name] = (targets & known) - {module.name}
    return found


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for such an expression, and "" for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def problems(rule: Rule) -> list[str]:
    """Return the problems of a rule, with the rule itself first; empty when there are none."""
    found = [f"{module.path}:{problem}" for module in all_modules() for problem in rule(module)]
    return [str(rule.__doc__), *found] if found else []
