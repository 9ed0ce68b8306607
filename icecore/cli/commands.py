"""The table of commands and of their modules: one is imported when it is called.

``icecore --help`` needs their names and one line each, so that it answers before numpy and gRPC
would be loaded. The examples below stand at the end of each command's own help.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from icecore.cli.examples import EXAMPLES

COMMANDS: Mapping[str, tuple[str, str]] = {
    "topic": ("topics.topic:app", "Create, describe, change, delete topics."),
    "cluster": ("cluster:app", "Nodes and health of the cluster."),
    "node": ("nodes:app", "Storage nodes that come, are emptied, and go."),
    "segment": ("segment:app", "Segments of topics and of data folders."),
    "position": ("positions:app", "How far readers with a name have come."),
    "producer": ("producers:app", "Names that producers have taken."),
    "tier": ("tier:app", "Object storage: its state, proofs of a bucket, restoring, merging."),
    "config": ("config:app", "Settings of the servers."),
    "explain": (
        "records.explain:app",
        "Show which segments and indexes a query or a fetch would read.",
    ),
    "produce": ("records.produce:produce", "Append records from files or stdin, one per line."),
    "fetch": ("records.fetch:fetch", "Print records, one JSON object per line."),
    "query": (
        "records.query:query",
        "Find records and print them, one JSON object per line, by append time.",
    ),
    "dev": ("dev:app", "Run a cluster on this machine until Ctrl-C."),
}
"""Module and object of each command in this package, and its line in ``icecore --help``."""
WITHIN: Mapping[str, Mapping[str, str]] = {
    "topic": {"delete-records": "records.delete_records:delete_records"},
    "cluster": {"health": "health:health"},
    "segment": {"delete": "records.delete_records:delete_segments"},
}
"""Commands of a group that live in another file."""


@lru_cache
def load(name: str) -> Any:
    """The command of that name, with its examples, ready to be called."""
    found = _object(COMMANDS[name][0])
    if isinstance(found, typer.Typer):
        known = {each.name for each in found.registered_commands}
        for part, where in WITHIN.get(name, {}).items():
            if part not in known:
                found.command(part)(_object(where))
        found.rich_markup_mode = None
        found.info.cls = CommandGroup
        command: Any = get_group(found)
    else:
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(name)(found)
        command = get_command(single)
    command.name = name
    for path, each in walk(name, command):
        each.epilog = _epilog(EXAMPLES.get(path, ()))
    return command


def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and those below it, each with all the words of its name."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(f"{path} {name}", each)


def _object(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"icecore.cli.{module}"), name)


def _epilog(examples: Sequence[str]) -> str | None:
    if not examples:
        return None
    # \b keeps the lines as they are.
    return "\n".join(["\b", "Examples:", *(f"  {each}" for each in examples)])


_ELSEWHERE: Final = dict.fromkeys(
    ("group", "groups", "consumer-group", "consumer-groups"),
    "there are no consumer groups yet; icecore position has the saved positions of readers",
)
"""Commands that other products have, and what there is in their place."""


_NO_GROUPS: Final = (
    "there are no consumer groups yet; --position NAME goes on where the last reader of that name "
    "was, and --partition gives each process its own"
)
_OPTIONS_ELSEWHERE: Final = dict.fromkeys(
    ("--group", "--group-id", "--consumer-group", "-G"), _NO_GROUPS
)
"""Options that other products have, and what there is in their place."""


def explain_option(error: Any) -> None:
    """Give a usage error about an option of another product the sentence that helps."""
    if (why := _OPTIONS_ELSEWHERE.get(getattr(error, "option_name", ""))) is not None:
        error.message, error.possibilities = f"No such option {error.option_name}: {why}.", None


class CommandGroup(TyperGroup):
    """The commands of one kind of thing, such as ``topic``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A typo is answered with all names: the most similar one may be ``delete``."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(
                f"No such command {args[0]!r}; there are {', '.join(self.list_commands(ctx))}."
            )
        return super().resolve_command(ctx, args)


class Commands(TyperGroup):
    """All commands, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the help."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None."""
        if cmd_name in COMMANDS:
            return load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names and their lines, from the table: nothing is imported for them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As ever; the suggestions for a typo come from the table."""
        if args[0] in COMMANDS:
            self.commands.setdefault(args[0], load(args[0]))
        elif args[0] in _ELSEWHERE:
            ctx.fail(f"No such command {args[0]!r}: {_ELSEWHERE[args[0]]}.")
        else:
            for name in COMMANDS:
                self.commands.setdefault(name, typer.core.TyperCommand(name))
        return super().resolve_command(ctx, args)
