"""Options that several commands have: each has one spelling, one help text and one default here.

Those that say which records are wanted are in ``records/conditions.py``, those of a topic's
settings in ``topic_options.py``. Both give a command one parameter in the place of many options.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeAlias

import typer

from icecore.cli.output import Output
from icecore.cli.session import CommandSession
from icecore.errors import IcecoreError

_COMPLETION_S = 2.0

Command: TypeAlias = Callable[..., None]
OptionRow: TypeAlias = tuple[Any, Any]
"""An annotation as typer reads it, and the default."""


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin so, for the shell; none when the cluster does not answer."""
    from icecore.cli import profiles

    given = context.find_root().params
    try:
        profile = profiles.load(given.get("profile") or "")
        session = CommandSession(
            given.get("bootstrap") or profile.bootstrap,
            _COMPLETION_S,
            Output(is_json=True, is_quiet=True),
        )
        topics = session.admin(lambda admin: admin.describe_topics())
    except IcecoreError:
        return []  # a shell that waits for a TAB has no place for a message
    return sorted(each.name for each in topics if each.name.startswith(incomplete))


TopicName = Annotated[
    str,
    typer.Argument(help="Name of the topic.", show_default=False, autocompletion=complete_topic),
]
OnlyTopics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this one; may be repeated.", autocompletion=complete_topic),
]
PartitionNumber = Annotated[
    int, typer.Argument(help="Number of the partition.", show_default=False)
]
OnlyPartitions = Annotated[
    list[int] | None, typer.Option("--partition", min=0, help="Only this one; may be repeated.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


def in_place_of(
    parameter: str, rows: Mapping[str, OptionRow], value: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Replace a parameter of a command by options.

    Args:
        parameter: Its name.
        rows: The options, by the names of their parameters.
        value: Makes the parameter of what was given for the options.
    """

    def decorate(command: Command) -> Command:
        parts: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            if each.name == parameter:
                parts += [_keyword(name, *row) for name, row in rows.items()]
            else:
                parts.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**given: Any) -> None:
            said = {name: given.pop(name) for name in rows}
            command(**given, **{parameter: value(said)})

        # Typer reads both.
        run.__signature__ = inspect.Signature(parts)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parts}
        return run

    return decorate


def given_options(context: typer.Context) -> list[str]:
    """Options of a command that were typed, by their longest names."""
    typed = []
    for each in context.command.params:
        source = context.get_parameter_source(str(each.name))
        if each.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            typed.append(max(each.opts, key=len))
    return typed


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
