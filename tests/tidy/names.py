"""The names that prose uses, and those that exist: files, commands, settings, rules and
identifiers.

``mentions`` of a text are found by patterns that are narrow on purpose: a rule that cries wolf is
switched off. Text in angle brackets, in capitals, or with ``…`` stands for something else and is no
name.
"""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import typer.main

from icecore.cli.app import app
from icecore.client import Consumer, Producer
from icecore.process.settings import Settings
from icecore_coordinator.config import CoordinatorSettings
from icecore_node.config import NodeSettings
from icecore_node.offline import COMMANDS
from tests.tidy.tree import ROOT, Module, production

SERVERS: Mapping[str, type[Settings]] = {
    "icecore-node": NodeSettings,
    "icecore-coordinator": CoordinatorSettings,
}
TOP_FOLDERS = (
    *("icecore", "replication", "node", "coordinator", "proto", "tests", "benchmarks", "examples"),
    *("scripts", "docs", ".ci", "docker", "helm", "pyspark_icecore"),
)
_PATH = re.compile(r"(?<![\w./<>{}*-])(?:[\w.*-]+/)*[\w*.-]*[\w*-]\.(?:py|proto|md)\b(?![/\w])")
_FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FOLDER_IN_BLOCK = re.compile(r"(?<![\w./<-])((?:[a-z_][\w-]*/)+)(?=[\s,;:)]|$)", re.MULTILINE)
_OTHER_FILE = re.compile(
    rf"(?<![\w./<>{{}}*-])((?:{'|'.join(TOP_FOLDERS)})/[\w./-]*\.[a-z]+)\b(?![/\w*])"
)
_MODULE = re.compile(
    r"(?<![\w./-])((?:icecore(?:_node|_coordinator|_replication)?|tests|benchmarks)(?:\.[a-z_]\w*)+)"
)
_MEMBER = re.compile(r"`((?:[A-Za-z_]\w*\.)*_?[A-Z]\w*[a-z]\w*(?:\.\w+)*)(?:\([^`]*\))?`")
_CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_RULE = re.compile(r"\bR(\d{1,3})\b")
_MAKE = re.compile(r"^[$ ]*make ([a-z][a-z-]*)\b", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s/$`(])(icecore(?:-node|-coordinator)?) +([^\n`|<>]*)", re.MULTILINE)
_IDENTIFIER = re.compile(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`")
_TESTS = re.compile(r"\b(unit|conformance|cluster) ((?:`\w+`(?:, )?)+)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_METRIC = re.compile(r"\bicecore_[a-z_]+(?![\w./*])")


# --- files --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def files() -> tuple[str, ...]:
    """Every file of the tree that prose may name, relative to the root."""
    found = [path.name for path in ROOT.iterdir() if path.is_file()]
    for folder in TOP_FOLDERS:
        found += [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return tuple(found)


@cache
def files_named(name: str) -> tuple[str, ...]:
    """Those that a path names by its end; ``*`` stands for any part of one name."""
    if name.startswith(tuple(f"{folder}/" for folder in TOP_FOLDERS)) or "/" not in name:
        exact = tuple(path for path in files() if path == name)
        if exact:
            return exact
    return tuple(path for path in files() if PurePosixPath(path).match(name))


def is_folder(name: str) -> bool:
    """Return whether some folder's path ends in it."""
    wanted = f"/{name.strip('/')}/"
    return any(wanted in f"/{path}" for path in files())


def unclear_files(text: str, near: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line, path) of what names no file, or several.

    A path is full, or the end of exactly one; ``a*.py`` are all that fit. A bare name may also be
    of a folder that the text is about (``near``), or of those that the same paragraph names. These
    folders must agree on one file: else a reader takes the wrong one.
    """
    for at, paragraph in _paragraphs(text):
        named = {*_FOLDER.findall(paragraph), *_folders_of_paths(paragraph)}
        for match in _PATH.finditer(paragraph):
            name = match[0].removeprefix("./")
            found = files_named(name)
            if len(found) == 1 or (found and "*" in name):
                continue
            close = [[path for path in found if _is_below(path, folder)] for folder in named]
            beside = [path for path in found if f"{PurePosixPath(path).parent}/" in near]
            if not beside and len({each[0] for each in close if len(each) == 1}) != 1:
                yield at + paragraph.count("\n", 0, match.start()), name


def unclear_folders(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, folder) of folders that are not there, in backticks or in a block of code."""
    for match in _FOLDER.finditer(text):
        if not is_folder(match[1]):
            yield text.count("\n", 0, match.start()) + 1, match[1]
    for block in _BLOCK.finditer(text):
        for match in _FOLDER_IN_BLOCK.finditer(block[1]):
            if not is_folder(match[1]):
                yield text.count("\n", 0, block.start(1) + match.start()) + 1, match[1]


def unknown_files(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, path) of full paths to no file, whatever its suffix is."""
    for match in _OTHER_FILE.finditer(text):
        is_stand_in = PurePosixPath(match[1]).stem.isupper()
        if not (is_stand_in or match[1].endswith((".py", ".proto", ".md")) or match[1] in files()):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def unknown_modules(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of dotted names that no module has: ``package.module.name``."""
    for match in _MODULE.finditer(text):
        parts = match[1].split(".")
        found = next((at for at in range(len(parts), 0, -1) if _module_text(parts[:at])), 0)
        rest = parts[found:]
        if rest and rest[0] not in _WORD.findall(_module_text(parts[:found])):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def _module_text(parts: list[str]) -> str:
    path = "/".join(parts)
    found = (*files_named(f"{path}.py"), *files_named(f"{path}/__init__.py"))
    return (ROOT / found[0]).read_text() if found and parts else ""


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) between empty lines."""
    breaks = [match.end() for match in re.finditer(r"\n[ \t]*(?=\n)", text)]
    for start, end in pairwise([0, *breaks, len(text)]):
        yield text.count("\n", 0, start) + 1, text[start:end]


def _folders_of_paths(section: str) -> list[str]:
    names = [match[0] for match in _PATH.finditer(section) if "/" in match[0]]
    return [name.rpartition("/")[0] + "/" for name in names]


def _is_below(path: str, folder: str) -> bool:
    return f"/{folder.strip('/')}/" in f"/{path}"


# --- links --------------------------------------------------------------------------------------


def without_links(text: str) -> str:
    """The text without the targets of its links, for ``broken_links`` looks at those."""
    return _LINK.sub("]", text)


def broken_links(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, target) of links of a document that lead to no file, or to no heading of it."""
    for match in _LINK.finditer(text):
        name, _, anchor = match[1].partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        found = (ROOT / path).parent / name if name else ROOT / path
        if not found.exists() or (anchor and anchor not in _anchors(found.read_text())):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def _anchors(text: str) -> set[str]:
    """As a reader of Markdown makes them of headings."""
    headings = _HEADING.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {re.sub(r"[^\w -]", "", each.lower()).strip().replace(" ", "-") for each in headings}


# --- commands -----------------------------------------------------------------------------------


def code_in(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of what stands in backticks, in a line or as a block."""
    for match in _CODE.finditer(text):
        group = 1 if match[1] is not None else 2
        yield text.count("\n", 0, match.start(group)) + 1, match[group].replace("\\\n", " ")


@lru_cache(maxsize=1)
def make_targets() -> frozenset[str]:
    """All that ``make`` knows."""
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


def unknown_targets(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, target)."""
    for line, code in code_in(text):
        for target in _MAKE.findall(code):
            if target not in make_targets():
                yield line, f"make {target}"


def unknown_commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) of commands of ours, with their options."""
    for line, code in code_in(text):
        for match in _COMMAND.finditer(code):
            words = match[2].split("#")[0].split()
            wrong = _wrong_in_server if match[1] in SERVERS else _wrong_in_client
            for word in wrong(match[1], words):
                yield line, f"{match[1]} {' '.join(words)}: {word}"


def _wrong_in_client(_: str, words: list[str]) -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    known = _options(command) | {"--help", "-h"}
    for word in words:
        if word.startswith("-"):
            if word.partition("=")[0] not in known:
                yield word
        elif (find := getattr(command, "get_command", None)) is not None:
            following = find(None, word)
            if following is None:
                if re.fullmatch(r"[a-z-]+", word):
                    yield word
                return
            command = following
            known |= _options(command)


def _options(command: Any) -> set[str]:
    return {option for each in command.params for option in each.opts + each.secondary_opts}


def _wrong_in_server(name: str, words: list[str]) -> Iterator[str]:
    cls = SERVERS[name]
    flags = {cls.flags.get(field, f"--{field.replace('_', '-')}") for field in cls.model_fields}
    if words and words[0] in COMMANDS:
        return
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in flags | {"--config", "--help"}:
            yield word


# --- settings, arguments, rules, identifiers ----------------------------------------------------


def unknown_settings(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of settings and arguments in the tables that are about those.

    Such a table says *setting* or *argument* in its heading.
    """
    arguments = {*_arguments(Producer), *_arguments(Consumer), *dir(Producer), *dir(Consumer)}
    fields = {field for cls in SERVERS.values() for field in cls.model_fields}
    known: set[str] | None = None
    for number, row in enumerate(text.splitlines(), 1):
        if not row.startswith("|"):
            known = None
        elif known is None:
            known = fields if "setting" in row else arguments if "argument" in row else set()
        elif known:
            for name in _IDENTIFIER.findall(row):
                if name not in known:
                    yield number, name


def _arguments(cls: type) -> set[str]:
    return set(inspect.signature(cls).parameters)


@lru_cache(maxsize=1)
def rules() -> frozenset[int]:
    """The numbers that docs/design/protocol.md defines."""
    text = (ROOT / "docs/design/protocol.md").read_text()
    return frozenset(int(number) for number in re.findall(r"^- \*\*R(\d+) ", text, re.MULTILINE))


def unknown_rules(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, rule)."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from (
            (number, f"R{rule}") for rule in _RULE.findall(line) if int(rule) not in rules()
        )


@lru_cache(maxsize=1)
def _words_of_code() -> frozenset[str]:
    suffixes = (".py", ".proto", ".toml", ".sh")
    named = [path for path in files() if path.endswith(suffixes) or path == "Makefile"]
    texts = [(ROOT / path).read_text() for path in named if not path.startswith("tests/tidy/")]
    stems = {PurePosixPath(path).stem for path in files()}
    words = {word for text in texts for word in _WORD.findall(text)}
    return frozenset(words | stems | {stem.removeprefix("test_") for stem in stems})


def unknown_identifiers(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of ``names_like_this`` in backticks that no code has."""
    for match in _IDENTIFIER.finditer(text):
        if match[1] not in _words_of_code():
            yield text.count("\n", 0, match.start()) + 1, match[1]


def unknown_members(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of ``ClassNames`` and ``Class.members`` in backticks that no code has."""
    for match in _MEMBER.finditer(text):
        words = _WORD.findall(match[1])
        makers = _makers().get(words[0], []) if len(words) > 1 else []
        if not _words_of_code().issuperset(words) or (
            makers and not any(words[1] in each for each in makers)
        ):
            yield text.count("\n", 0, match.start()) + 1, match[1]


@lru_cache(maxsize=1)
def _makers() -> dict[str, list[str]]:
    """The texts that define each class and message."""
    found: dict[str, list[str]] = {}
    for path in files():
        if path.endswith((".py", ".proto")) and not path.startswith("tests/"):
            text = (ROOT / path).read_text()
            for name in re.findall(r"^ *(?:class|message|enum) (\w+)", text, re.MULTILINE):
                found.setdefault(name, []).append(text)
    return found


def unknown_metrics(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of metrics that docs/reference/metrics.md does not have."""
    known = set(_WORD.findall((ROOT / "docs/reference/metrics.md").read_text()))
    for match in _METRIC.finditer(text):
        if match[0].removesuffix("_bucket") not in known | _words_of_code():
            yield text.count("\n", 0, match.start()) + 1, match[0]


def unknown_tests(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) in lists such as ``unit `heard`, `placement` `` without such a file."""
    for match in _TESTS.finditer(text):
        folder, line = f"tests/{match[1]}/", text.count("\n", 0, match.start()) + 1
        stems = [PurePosixPath(path).stem for path in files() if path.startswith(folder)]
        for name in re.findall(r"\w+", match[2]):
            if not any(f"{stem}_".startswith(f"test_{name}_") for stem in stems):
                yield line, f"{match[1]} {name}"


# --- prose in code ------------------------------------------------------------------------------


def prose_of(module: Module) -> Iterator[tuple[int, str]]:
    """(line, text) of its docstrings and comments."""
    for node in ast.walk(module.tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def production_prose() -> Iterator[tuple[Module, int, str]]:
    """Yield the prose of every file that is installed."""
    for module in production():
        for line, text in prose_of(module):
            yield module, line, text
