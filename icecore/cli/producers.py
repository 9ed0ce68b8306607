"""``icecore producer``: names that producers have taken, and forgetting those that nobody uses."""

from typing import Annotated

import typer

from icecore.cli.options import Yes
from icecore.cli.output import plain
from icecore.cli.records.times import iso_time
from icecore.cli.session import confirm_final, session_of
from icecore.client.types import ProducerNameInfo

app = typer.Typer(no_args_is_help=True, help="Names that producers have taken.")

COLUMNS = ("name", "producer_id", "producer_epoch", "taken_at")


def _row(each: ProducerNameInfo) -> dict[str, object]:
    taken_at = iso_time(each.taken_at_ms) if each.taken_at_ms else ""
    return {**plain(each), "taken_at": taken_at}


@app.command("list")
def list_names(context: typer.Context) -> None:
    """Show the names that producers have taken, with the time when each was taken last."""
    session = session_of(context)
    found = session.admin(lambda admin: admin.list_producer_names())
    session.output.rows(map(_row, found), COLUMNS)


@app.command()
def delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the producer.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Forget a name that no program uses any more.

    A producer that still has it is shut out. One that takes it later begins anew: nothing says
    then how far the one before had got.
    """
    session = session_of(context)
    confirm_final(f"Forget producer name {name}, and shut out who has it?", yes=yes)
    session.admin(lambda admin: admin.delete_producer_name(name))
    if session.output.is_json:
        session.output.json({"deleted": name})
    session.output.note(f"producer name {name} deleted")
