"""Commands read a bucket by the servers' code, in a process of its own: clients don't import it."""

import json
import subprocess
from typing import Annotated, Any

import typer

from icecore.cli.session import CommandSession
from icecore.errors import StorageError, WrongClusterError
from icecore.process import launch

Region = Annotated[str, typer.Option(help="Of an S3 bucket.")]
Endpoint = Annotated[str, typer.Option(help="http(s)://host:port of another S3 than AWS's.")]


def bucket_place(region: str, endpoint: str) -> list[str]:
    """Return the arguments that say where a bucket is, beside its URL."""
    return ["--region", region, "--endpoint", endpoint]


def run_on_bucket(
    session: CommandSession, arguments: list[str], known: str | None = None
) -> dict[str, Any]:
    """Run one command on a bucket. Raises StorageError with what it says."""
    progress = [] if session.output.is_quiet or session.output.is_json else ["--progress"]
    done = subprocess.run(
        [*launch.command("icecore_node.bucket_commands"), *arguments, *progress],
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.PIPE,
        input=known or "",
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        why = (done.stderr or "").strip().splitlines() or ["see above"]
        raise StorageError(why[-1].removeprefix("icecore: ")) from error
    return found


def read_inventory(
    session: CommandSession, url: str, place: list[str], cluster_id: str, *, skip_gaps: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the topics of a cluster's own bucket, and what is in the way of their coming back.

    Args:
        session: Of the command.
        url: Of the bucket.
        place: See ``bucket_place``.
        cluster_id: Of the cluster, in hexadecimal.
        skip_gaps: Whether copies that are lost are left out. Then topics that can't be read are
            left out, too, and nothing is in the way.

    Raises:
        WrongClusterError: It is the bucket of another cluster, or of none.
        StorageError: It can't be read.
    """
    skipping = ["--skip-gaps"] * skip_gaps
    found = run_on_bucket(session, ["inventory", url, *place, *skipping])
    if found["cluster_id"] != cluster_id:
        owner = found["cluster_id"] or "no cluster, for its marker is missing"
        raise WrongClusterError(
            f"{url} is the bucket of {owner}; these nodes are of {cluster_id}. Name the bucket "
            "that their tier_url names"
        )
    problems = [
        f"{each['topic'] or each['topic_id']}: {what}"
        for each in found["topics"]
        for what in each["problems"]
    ]
    for line in [*problems, *(line for each in found["topics"] for line in each["left_out"])]:
        session.output.note(line)
    whole = [each for each in found["topics"] if not each["problems"]]
    for each in whole:
        if each["settings"] is None and each["segments"]:
            session.output.note(
                f"the bucket has no settings of topic {each['topic']}: where no coordinator knows "
                "it, it gets those of a new one with tier=on, alter it afterwards"
            )
    return whole, [] if skip_gaps else problems
