"""``icecore-node inspect | reset-token | reset-promise``: what a stopped node has promised.

A node never forgets the highest coordinator token and the epochs that it promised, and obeys
nothing lower. When one of them is too high (a broken coordinator, a metadata store that was
restored from an old backup), the node refuses every order, for ever. A person may lower it here.
That is safe only while nobody acts on the higher number, so the commands take the folder's lock,
say what they change, and do it only with ``--yes``.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from icecore.errors import ConfigurationError, IcecoreError
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.data_folder import CONTROL_NAME, lock_folder

COMMANDS = ("inspect", "reset-token", "reset-promise")


def main(arguments: Sequence[str]) -> None:
    """Carry out one command; ends the process with status 1 and a line on stderr if it can't."""
    given = _parser().parse_args(arguments)
    data: Path = given.data
    try:
        if not (data / CONTROL_NAME).is_file():
            raise ConfigurationError(f"{data} is not a node's data folder: it has no control store")
        lock = lock_folder(data)
        try:
            control = ControlStore(data / CONTROL_NAME)
            try:
                _carry_out(given, control)
            finally:
                control.close()
        finally:
            os.close(lock)
    except IcecoreError as error:
        sys.exit(f"icecore-node: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="icecore-node", description="Of a stopped node's folder.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="show whose folder it is and what it promised")
    token = commands.add_parser("reset-token", help="lower the highest coordinator token seen")
    token.add_argument("--token", type=_number, required=True, help="of the coordinator that runs")
    promise = commands.add_parser("reset-promise", help="lower the promised epoch of a segment")
    promise.add_argument("--segment", type=_number, required=True, help="its id")
    promise.add_argument("--epoch", type=_number, required=True, help="0 = no promise")
    for each in (inspect, token, promise):
        each.add_argument("data", type=Path, help="the node's data folder")
    for each in (token, promise):
        each.add_argument("--yes", action="store_true", help="really do it")
    return parser


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2^63 - 1")
    return int(text)


def _carry_out(given: argparse.Namespace, control: ControlStore) -> None:
    match given.command:
        case "inspect":
            print(json.dumps(inspected(control), indent=2))
        case "reset-token":
            print(f"highest coordinator token: {control.promises.max_token} becomes {given.token}")
            print("A coordinator with this token or a higher one will be obeyed.")
            if _is_meant(given):
                control.promises.reset_token(given.token)
        case "reset-promise":
            known = control.promises.epoch_of(given.segment)
            print(f"promised epoch of segment {given.segment}: {known} becomes {given.epoch}")
            print("A leader of this segment with this epoch or a higher one may append again.")
            if _is_meant(given):
                control.promises.reset_epoch(given.segment, given.epoch)


def _is_meant(given: argparse.Namespace) -> bool:
    print("done" if given.yes else "Nothing is changed yet: say --yes.")
    return bool(given.yes)


def inspected(control: ControlStore) -> dict[str, object]:
    """What a control store says, as ``inspect`` prints it."""
    rows = control.rows()
    return {
        "node_id": control.database.get_number("node_id"),
        "cluster_id": control.disk.cluster_id.hex(),
        "disk_id": control.disk.disk_id.hex(),
        "incarnation": control.disk.incarnation,
        "max_token": control.promises.max_token,
        "replicas": [
            {
                "segment_id": row.segment_id,
                "state": row.state,
                "epoch": row.epoch,
                "promised_epoch": max(row.epoch, control.promises.epoch_of(row.segment_id)),
                "damage": row.damage,
            }
            for row in rows
        ],
    }
