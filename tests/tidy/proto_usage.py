"""The fields of protobuf messages that production code writes and reads, found in its syntax trees.

A small type inference: it follows annotations, constructors, ``FromString``, ``parse``, loops and
attribute chains. A container of messages counts as the message itself, and a function or an
attribute is known by its name alone, so a type is a set of message names. Where nothing is known
of a receiver (a parameter of a lambda, the result of a generic function) any message that the
module may hold counts; so a field may pass for read that is not, and hardly ever the other way.
"""

import ast
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.descriptor import Descriptor, FileDescriptor

Field = tuple[str, str]
"""Message and field."""
Types = frozenset[str]
"""Names of messages that a value may be; empty = it is no message."""
NOTHING: Types = frozenset()
UNKNOWN: Types = frozenset({"?"})

_SAME = frozenset(
    [
        "list",
        "tuple",
        "sorted",
        "reversed",
        "iter",
        "next",
        "enumerate",
        "zip",
        "filter",
        "map",
        "dict",
        "set",
        "min",
        "max",
        "chain",
        "values",
        "items",
        "get",
        "pop",
        "add",
        "copy",
        "shield",
        "gather",
        "CopyFrom",
        "MergeFrom",
        "cast",
    ]
)
"""Calls that give back what goes in, or what they are asked of."""
_FILLS = frozenset(["CopyFrom", "MergeFrom", "extend", "append", "add", "insert", "update"])


@dataclass
class Schema:
    """All messages: the fields of each, with the message type of the field, if any."""

    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    """Fields by the name of the ``oneof`` that they are in."""

    def add(self, file: FileDescriptor) -> None:
        """Take in the messages of one file."""
        for message in file.message_types_by_name.values():
            self.fields[message.name] = {
                each.name: _type_of(each.message_type) for each in message.fields
            }
            for choice in message.oneofs:
                self.choices.setdefault(choice.name, []).extend(e.name for e in choice.fields)

    def all_fields(self) -> Iterator[Field]:
        """Every field of every message."""
        for message, names in self.fields.items():
            for name in names:
                yield message, name

    def reachable(self, messages: Iterable[str]) -> Types:
        """These messages and all that are inside of them."""
        found: set[str] = set()
        left = list(messages)
        while left:
            message = left.pop()
            if message in self.fields and message not in found:
                found.add(message)
                left += self.fields[message].values()
        return frozenset(found)


def _type_of(message: Descriptor | None) -> str:
    return "" if message is None or message.GetOptions().map_entry else message.name


@dataclass
class Usage:
    """The fields that production code writes and reads."""

    written: set[Field] = field(default_factory=set)
    read: set[Field] = field(default_factory=set)


def usage(schema: Schema, modules: Mapping[str, ast.Module]) -> Usage:
    """Go through all modules, by path."""
    found = Usage()
    names = _Names(schema)
    nodes = {path: list(ast.walk(tree)) for path, tree in modules.items()}
    for path in modules:
        names.learn(nodes[path])
    keys = {path: _keys_of(nodes[path]) for path in modules}
    for path, tree in modules.items():
        given = [each for other in _imported_from(nodes[path]) for each in modules if other in each]
        passed = keys[path].union(*(keys[each] for each in given))
        _Module(schema, names, nodes[path], found, passed).visit(tree)
    return found


def _keys_of(nodes: list[ast.AST]) -> set[str]:
    """Return the keys of all dicts that are written out: they may be passed as ``**values``."""
    return {
        key.value
        for node in nodes
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _imported_from(nodes: list[ast.AST]) -> list[str]:
    """Ends of the paths of modules of the same package; what they pass on comes from there."""
    return [
        f"/{node.module.replace('.', '/')}.py"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and "_pb2" not in node.module
    ]


class _Names:
    """The types that annotations give to functions and attributes, over all modules, by bare
    name."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.results: dict[str, Types] = {}
        self.attributes: dict[str, Types] = {}
        self.aliases: dict[str, Types] = {}
        self.values: dict[str, dict[str, set[str]]] = {}
        """Fields of classes, with the names that their annotations have."""
        self._variables: set[str] = set()

    def learn(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name) and _last_name(node.value) == "TypeVar":
                        self._variables.add(target.id)
                    elif isinstance(target, ast.Name) and _is_alias(node):
                        self.aliases[target.id] = self.of_annotation(node.value)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                known = self.values.setdefault(node.name, {})
                for each in node.body:
                    if isinstance(each, ast.AnnAssign):
                        named = {_last_name(part) for part in ast.walk(each.annotation)}
                        known.setdefault(_last_name(each.target), set()).update(named)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                types = self.of_annotation(node.returns)
                self.results[node.name] = self.results.get(node.name, NOTHING) | types
            elif isinstance(node, ast.AnnAssign):
                name = _last_name(node.target)
                types = self.of_annotation(node.annotation)
                self.attributes[name] = self.attributes.get(name, NOTHING) | types

    def copied(self, value: str, message: str) -> Iterator[Field]:
        """Yield each field that ``icecore.rpc.messages`` copies between a class and a message."""
        there = self._schema.fields.get(message, {})
        for name, named in self.values.get(value, {}).items():
            if (field := name.removeprefix("is_")) in there:
                yield message, field
                if there[field]:
                    for inner in named & self.values.keys():
                        yield from self.copied(inner, there[field])

    def closest(self, message: str) -> str:
        """Return the class with the most fields of a message: the one that it is made of."""
        there = self._schema.fields[message].keys()
        return max(
            sorted(self.values),
            key=lambda each: len({name.removeprefix("is_") for name in self.values[each]} & there),
        )

    def of_annotation(self, node: ast.expr | None) -> Types:
        """All messages that an annotation names; UNKNOWN among them for type variables."""
        found: set[str] = set()
        for part in ast.walk(node) if node is not None else ():
            name = _last_name(part)
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                with contextlib.suppress(SyntaxError):  # it may be a text of Annotated
                    found |= self.of_annotation(ast.parse(part.value, mode="eval").body)
            elif name in self._schema.fields and _is_message(part):
                found.add(name)
            elif name in self.aliases:
                found |= self.aliases[name]
            elif name in self._variables or name == "Any":
                found |= UNKNOWN
        return frozenset(found)


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node, ast.AnnAssign) and _last_name(node.annotation) == "TypeAlias"


def _is_message(node: ast.AST) -> bool:
    """``pb.Name``, or a plain name: plain values are told apart by ``_Module.imported``."""
    return isinstance(node, ast.Attribute) and _last_name(node.value).endswith(("pb", "pb2"))


def _last_name(node: ast.AST | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _last_name(node.func) if isinstance(node, ast.Call) else ""


class _Module(ast.NodeVisitor):
    """One module: notes each write and read of a field in ``found``."""

    def __init__(
        self,
        schema: Schema,
        names: _Names,
        nodes: list[ast.AST],
        found: Usage,
        keys: set[str],
    ) -> None:
        self._schema = schema
        self._names = names
        self._found = found
        self._imported = {
            each.asname or each.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("_pb2")
            for each in node.names
        }
        mentioned = [_last_name(node) for node in nodes if self._message(node)]
        self._held = schema.reachable(mentioned)
        self._keys = keys
        self._tables = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.DictComp)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        """Variables that comprehensions filled."""
        self._scopes: list[dict[str, Types]] = [{}]

    def _message(self, node: ast.AST) -> str:
        """The message class that an expression names, empty for others."""
        name = _last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        is_one = name in self._schema.fields and (_is_message(node) or name in self._imported)
        return name if is_one else ""

    # --- scopes -----------------------------------------------------------------------------------

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        scope: dict[str, Types] = {}
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            is_plain = each.annotation is not None or each.arg in ("self", "cls", "_")
            scope[each.arg] = self._annotated(each.annotation) if is_plain else UNKNOWN
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def _annotated(self, node: ast.expr | None) -> Types:
        found = self._names.of_annotation(node)
        parts = ast.walk(node) if node is not None else ()
        return found | {self._message(part) for part in parts} - {""}

    def _bind(self, target: ast.expr, types: Types) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known = self._scopes[-1].get(node.id, NOTHING)
                self._scopes[-1][node.id] = known | types

    def _look_up(self, name: str) -> Types:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), NOTHING)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        types = self._types(node.value)
        for target in node.targets:
            self._bind(target, types)
            self._write_target(target)
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._bind(node.target, self._annotated(node.annotation))
        self._write_target(node.target)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, self._types(node.value))
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._bind(node.target, self._types(node.iter))
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        self._bind_generators(node)
        self.generic_visit(node)

    def _bind_generators(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        for generator in node.generators:
            self._bind(generator.target, self._types(generator.iter))

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension

    # --- types ------------------------------------------------------------------------------------

    def _types(self, node: ast.AST | None) -> Types:
        match node:
            case ast.Name():
                return self._look_up(node.id)
            case ast.Attribute():
                return self._types_of_attribute(node)
            case ast.Call():
                return self._types_of_call(node)
            case ast.Subscript() | ast.Await() | ast.Starred() | ast.NamedExpr():
                return self._types(node.value)
            case ast.IfExp():
                return self._types(node.body) | self._types(node.orelse)
            case ast.BoolOp():
                return self._union(node.values)
            case ast.BinOp():
                return self._types(node.left) | self._types(node.right)
            case ast.Tuple() | ast.List() | ast.Set():
                return self._union(node.elts)
            case ast.Dict():
                return self._union(node.values)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._bind_generators(node)
                return self._types(node.elt)
            case ast.DictComp():
                self._bind_generators(node)
                return self._types(node.value)
        return NOTHING

    def _union(self, nodes: Iterable[ast.AST | None]) -> Types:
        return NOTHING.union(*(self._types(each) for each in nodes))

    def _types_of_attribute(self, node: ast.Attribute) -> Types:
        base = self._types(node.value)
        of_field = {
            self._schema.fields[each].get(node.attr, "") for each in self._messages(base)
        } - {""}
        if base - UNKNOWN:
            return frozenset(of_field)
        return frozenset(of_field) | self._names.attributes.get(node.attr, NOTHING)

    def _messages(self, types: Types) -> Types:
        """Those that a value may be; all that the module may hold when nothing is known."""
        return (types - UNKNOWN) | (self._held if types & UNKNOWN else NOTHING)

    def _types_of_call(self, node: ast.Call) -> Types:
        if message := self._message(node.func):
            return frozenset({message})
        name = _last_name(node.func)
        arguments = [*node.args, *(each.value for each in node.keywords)]
        if isinstance(node.func, ast.Attribute) and (made := self._message(node.func.value)):
            return frozenset({made})  # FromString
        of_class = {message for each in arguments if (message := self._message(each))}
        if of_class:
            return frozenset(of_class)  # parse(Message, body)
        found = self._names.results.get(name, NOTHING)
        if name in _SAME or found & UNKNOWN:
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            found |= self._union([owner, *arguments])
        return found

    # --- writes and reads -------------------------------------------------------------------------

    def _write(self, types: Types, name: str) -> None:
        for message in self._messages(types):
            if name in self._schema.fields[message]:
                self._found.written.add((message, name))

    def _write_target(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                self._write(self._types(node.value), node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                self._write(self._types(node.value.value), node.value.attr)

    def visit_Call(self, node: ast.Call) -> None:
        types = self._types(node.func.value) if isinstance(node.func, ast.Attribute) else NOTHING
        made = self._message(node.func)
        built = frozenset({made}) if made else types if _last_name(node.func) == "add" else NOTHING
        for keyword in node.keywords:
            for name in [keyword.arg] if keyword.arg else self._keys:
                self._write(built, name)
            if keyword.arg is None:
                self._write_table(built, keyword.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            filled = node.func.value
            if isinstance(filled, ast.Attribute):
                self._write(self._types(filled.value), filled.attr)
        if _last_name(node.func) == "getattr" and not isinstance(node.args[1], ast.Constant):
            for message in self._types(node.args[0]) & self._schema.fields.keys():  # by a table
                self._found.read |= {(message, each) for each in self._schema.fields[message]}
        self._note_copies(node)
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("HasField", "WhichOneof")
            and isinstance(node.args[0], ast.Constant)  # else a table's, which getattr reads, too
        ):
            asked = node.args[0].value
            for name in self._schema.choices.get(asked, [asked]):
                self._read(types, name)
        self.generic_visit(node)

    def _note_copies(self, node: ast.Call) -> None:
        """``value_of(Value, message)`` reads by the fields of the value, ``message_of`` writes."""
        if _last_name(node.func) == "value_of":
            for message in self._types(node.args[1]) & self._schema.fields.keys():
                self._found.read.update(self._names.copied(_last_name(node.args[0]), message))
        elif _last_name(node.func) == "message_of" and (made := self._message(node.args[0])):
            self._found.written.update(self._names.copied(self._names.closest(made), made))
            for keyword in node.keywords:
                self._write(frozenset({made}), keyword.arg or "")

    def _write_table(self, types: Types, values: ast.expr) -> None:
        """``**values``: when a comprehension made them, of all fields. Whoever copies by a table
        has a test that the table is complete."""
        name = values.id if isinstance(values, ast.Name) else ""
        if isinstance(values, ast.DictComp) or name in self._tables:
            for message in types & self._schema.fields.keys():
                self._found.written |= {(message, each) for each in self._schema.fields[message]}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(self._types(node.value), node.attr)
        self.generic_visit(node)

    def _read(self, types: Types, name: str) -> None:
        for message in self._messages(types):
            if name in self._schema.fields[message]:
                self._found.read.add((message, name))
