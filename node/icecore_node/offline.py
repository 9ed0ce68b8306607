"""``icecore-node inspect | reset-coordinator-epoch | reset-promise | forget-disk | forget-bucket``:
commands on a stopped node.

A node never forgets the highest coordinator epoch and the epochs that it promised, and obeys
nothing lower. When one of them is too high (a broken coordinator, a metadata store that was
restored from an old backup), the node refuses every order, for ever. A person may lower it here.
That is safe only while no coordinator or leader acts on the higher number, so the commands take the
folder's lock, say what they change, and do it only with ``--yes``.

Nor does it forget a disk that has replicas of it. When such a disk will never be back, a person
gives up what lies there; the cluster makes the copies again that it lacks then. A bucket that the
node has used and that is gone for good is given up in the same way: then the node begins a new one.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from icecore.errors import ConfigurationError, IcecoreError
from icecore_node.storage.control.control_store import QUARANTINED, ControlStore
from icecore_node.storage.control.disk_identity import FIRST_DISK, disk_of, engine_of
from icecore_node.storage.data_folder import CONTROL_NAME, lock_folder

COMMANDS = ("inspect", "reset-coordinator-epoch", "reset-promise", "forget-disk", "forget-bucket")


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
    coordinator_epoch = commands.add_parser(
        "reset-coordinator-epoch", help="lower the highest coordinator epoch seen"
    )
    coordinator_epoch.add_argument(
        "--coordinator-epoch", type=_number, required=True, help="of the coordinator that runs"
    )
    promise = commands.add_parser("reset-promise", help="lower the promised epoch of a segment")
    promise.add_argument("--segment", type=_number, required=True, help="its id")
    promise.add_argument("--epoch", type=_number, required=True, help="0 = no promise")
    forget = commands.add_parser("forget-disk", help="give up the replicas of a further disk")
    forget.add_argument("--disk", required=True, help="its id, as inspect shows it")
    bucket = commands.add_parser("forget-bucket", help="give up a bucket that is gone for good")
    for each in (inspect, coordinator_epoch, promise, forget, bucket):
        each.add_argument("data", type=Path, help="the node's data folder")
    for each in (coordinator_epoch, promise, forget, bucket):
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
        case "reset-coordinator-epoch":
            print(
                f"highest coordinator epoch: {control.promises.max_coordinator_epoch} "
                f"becomes {given.coordinator_epoch}"
            )
            print("A coordinator with this epoch or a higher one will be obeyed.")
            if _is_meant(given):
                control.promises.reset_coordinator_epoch(given.coordinator_epoch)
        case "reset-promise":
            known = control.promises.epoch_of(given.segment)
            print(f"promised epoch of segment {given.segment}: {known} becomes {given.epoch}")
            print("A leader of this segment with this epoch or a higher one may append again.")
            if _is_meant(given):
                control.promises.reset_epoch(given.segment, given.epoch)
        case "forget-disk":
            _forget_disk(given, control)
        case "forget-bucket":
            _forget_bucket(given, control)


def _forget_disk(given: argparse.Namespace, control: ControlStore) -> None:
    """Its replicas stay known as UNKNOWN ones without bytes, until they are made again or the
    coordinator orders that they go."""
    known = control.known_disks.all()
    rows = [row for row in control.rows() if disk_of(row.engine) == given.disk != FIRST_DISK]
    if given.disk not in known and not rows:
        raise ConfigurationError(f"no disk {given.disk!r} here; there are: {', '.join(known)}")
    where = known[given.disk].path if given.disk in known else "unknown"
    print(f"disk {given.disk}, {where}: its {len(rows)} replicas are given up")
    print("Should it hold the last copy of a segment, those records are lost.")
    if _is_meant(given):
        why = f"its disk {given.disk} was given up"
        control.put_rows(
            [
                replace(row, engine=engine_of(row.engine), state=QUARANTINED, damage=why)
                for row in rows
            ]
        )
        known.pop(given.disk, None)
        control.known_disks.keep(known)


def _forget_bucket(given: argparse.Namespace, control: ControlStore) -> None:
    """The next look takes the bucket at ``tier_url`` for one that was never used."""
    known = control.known_buckets.all()
    if not known:
        raise ConfigurationError(f"{given.data} remembers no bucket: there is nothing to forget")
    for url, bucket in known.items():
        print(f"bucket {url}, store id {bucket.store_id or 'none'}: it is forgotten")
    print("Segments that lie only there can't be read any more, unless it comes back.")
    if _is_meant(given):
        control.known_buckets.forget()


def _is_meant(given: argparse.Namespace) -> bool:
    print("done" if given.yes else "Nothing is changed yet: say --yes.")
    return bool(given.yes)


def inspected(control: ControlStore) -> dict[str, object]:
    """Return the contents of a control store, as ``inspect`` prints them."""
    rows = control.rows()
    return {
        "node_id": control.database.get_number("node_id"),
        "cluster_id": control.disk.cluster_id.hex(),
        "disk_id": control.disk.disk_id.hex(),
        "incarnation": control.disk.incarnation,
        "max_token": control.promises.max_coordinator_epoch,
        "further_disks": [
            {
                "disk": disk,
                "path": known.path,
                "replicas": sum(disk_of(row.engine) == disk for row in rows),
            }
            for disk, known in control.known_disks.all().items()
        ],
        "buckets": [
            {"url": url, "cluster_id": bucket.cluster_id, "store_id": bucket.store_id}
            for url, bucket in control.known_buckets.all().items()
        ],
        "replicas": [
            {
                "segment_id": row.segment_id,
                "state": row.state,
                "epoch": row.epoch,
                "promised_epoch": max(row.epoch, control.promises.epoch_of(row.segment_id)),
                "damage": row.damage,
                "disk": disk_of(row.engine),
            }
            for row in rows
        ],
    }
