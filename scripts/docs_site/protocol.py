"""The reference of the gRPC contract, written from ``proto/`` with the comments there."""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

PACKAGE = ".icecore.v1."
FOLDER = "docs/reference/protocol"
INDEX = f"{FOLDER}/index.md"
HEAD = """# gRPC services

Every call and message of `proto/icecore/v1/`, with the comments there. The wheel has these files
below `icecore/v1/proto`. An end of offsets is exclusive; the unit stands last in a name. Clients
need [data.proto](data.md), [admin.proto](admin.md) and [common.proto](common.md). Servers speak the
others among themselves.

```{toctree}
:maxdepth: 1
"""
_MESSAGES, _ENUMS, _SERVICES, _FIELDS, _METHODS, _VALUES, _NESTED = 4, 5, 6, 2, 2, 2, 3
"""Numbers of fields of descriptors, of which the paths of comments are made."""
_SCALARS = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}
_AT = tuple[int, ...]
_SYNTAX: _AT = (12,)


def written(root: Path) -> dict[str, str]:
    """Return the text of each page.

    Raises:
        CalledProcessError: A .proto file has an error.
    """
    files = {Path(each.name).stem: each for each in _files(root / "proto")}
    pages = {INDEX: "\n".join([HEAD, *files, "```\n"])}
    return pages | {
        f"{FOLDER}/{name}.md": "".join(
            _File(each, (root / "proto" / each.name).read_text()).lines()
        )
        for name, each in files.items()
    }


def _files(folder: Path) -> Iterable[FileDescriptorProto]:
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "all"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            "--include_source_info",
        ]
        subprocess.run([*command, f"--descriptor_set_out={out}", *names], check=True)
        found = FileDescriptorSet.FromString(out.read_bytes()).file
    return sorted(found, key=lambda each: (not each.service, each.name))


def anchor(name: str) -> str:
    """The anchor of a message, an enum or a service."""
    return f"proto-{name.replace('.', '-').lower()}"


class _File:
    """One .proto file and the comments of its parts."""

    def __init__(self, file: FileDescriptorProto, text: str) -> None:
        self._file = file
        lines = text.splitlines()
        self._comments = {
            tuple(each.path): _plain(comment(lines, each.span))
            for each in file.source_code_info.location
        }

    def lines(self) -> Iterator[str]:
        yield f"# {self._file.name.rpartition('/')[2]}\n\n{self._comments[_SYNTAX]}\n"
        for number, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, number))
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, number))
        for number, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (_ENUMS, number))

    def _heading(self, name: str, at: _AT) -> str:
        return f"\n({anchor(name)})=\n## {name}\n\n{self._comments.get(at, '')}\n"

    def _service(self, service: ServiceDescriptorProto, at: _AT) -> Iterator[str]:
        yield self._heading(service.name, at)
        yield "\n| call | request | answer | |\n|---|---|---|---|\n"
        for number, each in enumerate(service.method):
            asked, answer = _type(each.input_type), _type(each.output_type)
            asked = f"stream of {asked}" if each.client_streaming else asked
            answer = f"stream of {answer}" if each.server_streaming else answer
            said = self._cell((*at, _METHODS, number))
            yield f"| `{each.name}` | {asked} | {answer} | {said} |\n"

    def _message(self, message: DescriptorProto, name: str, at: _AT) -> Iterator[str]:
        if message.options.map_entry:
            return
        yield self._heading(name, at)
        maps = {f"{name}.{each.name}": each for each in message.nested_type}
        if message.field:
            yield "\n| no. | field | type | |\n|---|---|---|---|\n"
        for number, field in enumerate(message.field):
            said = self._cell((*at, _FIELDS, number))
            if field.HasField("oneof_index") and not field.proto3_optional:
                group = message.oneof_decl[field.oneof_index].name
                said = f"one of `{group}`. {said}" if said else f"one of `{group}`"
            yield f"| {field.number} | `{field.name}` | {_field_type(field, maps)} | {said} |\n"
        for number, nested in enumerate(message.nested_type):
            yield from self._message(nested, f"{name}.{nested.name}", (*at, _NESTED, number))
        for number, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*at, 4, number))

    def _enum(self, enum: EnumDescriptorProto, name: str, at: _AT) -> Iterator[str]:
        yield self._heading(name, at)
        yield "\n| no. | value | |\n|---|---|---|\n"
        for number, value in enumerate(enum.value):
            said = self._cell((*at, _VALUES, number))
            yield f"| {value.number} | `{value.name}` | {said} |\n"

    def _cell(self, at: _AT) -> str:
        return self._comments.get(at, "").replace("|", "\\|").replace("\n", " ")


def comment(lines: Sequence[str], span: Sequence[int]) -> str:
    """The comment of a part of a file: the lines above it, or else what stands behind it.

    A comment behind a field may go on in the next lines, further to the right than the field. The
    compiler takes those for the next field's.

    Args:
        lines: The file.
        span: First line, first column, last line if it is another one, end column; from 0 on.
    """
    first, column = span[0], span[1]
    above = first
    while above and lines[above - 1].startswith(" " * column + "//"):
        above -= 1
    if above < first:
        return "\n".join(line.strip().removeprefix("//").strip() for line in lines[above:first])
    last = span[2] if len(span) == 4 else first
    _, _, behind = lines[last][span[-1] :].partition("//")
    found = [behind.strip()]
    for line in lines[last + 1 :]:
        stripped = line.lstrip()
        if not behind or not stripped.startswith("//") or len(line) - len(stripped) <= column:
            break
        found.append(stripped.removeprefix("//").strip())
    return "\n".join(found)


def _plain(text: str) -> str:
    """The same with a backslash before each sign that Markdown would take for its own."""
    pieces = text.split("`")
    for number in range(0, len(pieces), 2):
        for sign in "\\<>*_[]":
            pieces[number] = pieces[number].replace(sign, f"\\{sign}")
    return "`".join(pieces)


def _type(name: str) -> str:
    if not name.startswith(PACKAGE):
        return f"`{name.lstrip('.')}`"
    short = name.removeprefix(PACKAGE)
    return f"[{short}](#{anchor(short)})"


def _field_type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    if not field.type_name:
        kind = _SCALARS[field.type]
    elif (entry := maps.get(field.type_name.removeprefix(PACKAGE))) and entry.options.map_entry:
        key, value = (_field_type(each, {}) for each in entry.field)
        return f"map of {key} to {value}"
    else:
        kind = _type(field.type_name)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind
