"""The table of a topic over a simulated bucket: what ``TopicTable`` promises, without its format.

Commits are numbered objects that are put if absent, as in a Delta log. The bucket's faults strike
here, too: a commit may be refused, or be done and nobody hears of it.
"""

import json
from collections.abc import Sequence

from icecore.errors import ConflictError, ObjectStoreBusyError, ObjectStoreError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.table_file import (
    TableDifferences,
    TableFile,
    check_paths,
    to_add,
)
from icecore_node.remote.verify.table_look import TableLook
from tests.simulation.object_store import SimBucket
from tests.simulation.process import SimProcess


class SimTopicTable:
    """See ``Table``.

    Args:
        bucket: Where it lies.
        process: Whose it is; None = nobody's that could be killed.
        cluster_id: Whose table it must be.
        topic_id: Whose folder.
    """

    def __init__(
        self, bucket: SimBucket, process: SimProcess | None, cluster_id: bytes, topic_id: bytes
    ) -> None:
        self._bucket = bucket
        self._process = process
        self._cluster = cluster_id.hex()
        self._folder = f"{topic_folder(topic_id)}/_delta_log"

    def compare(self, partition: int, revision: int, paths: Sequence[str]) -> TableDifferences:
        """See ``Table.compare``."""
        check_paths(partition, paths)
        revisions, named, _ = self._state()
        if revisions.get(partition, -1) >= revision:
            return TableDifferences([], [])
        mine = {each for each in named if each.startswith(f"{partition}/")}
        return TableDifferences(
            [path for path in paths if path not in named], sorted(mine - {*paths})
        )

    def bring_to(
        self,
        partition: int,
        revision: int,
        paths: Sequence[str],
        added: Sequence[TableFile],
        now_ms: int,
    ) -> bool:
        """See ``Table.bring_to``."""
        check_paths(partition, paths)
        revisions, named, commits = self._state()
        if revisions.get(partition, -1) >= revision:
            return False
        gone = [each for each in named if each.startswith(f"{partition}/") and each not in paths]
        new = {each.path: each.records for each in to_add(named, paths, added)}
        commit = {"cluster": self._cluster, "partition": partition, "revision": revision}
        data = json.dumps({**commit, "add": new, "remove": gone}).encode()
        key = self._key(commits)
        if key in self._bucket.objects:
            raise ConflictError(f"commit {commits} was made meanwhile")
        self._bucket.put(key, data)
        self._check()
        if self._bucket.faults.strikes("lost_answers"):
            raise ObjectStoreBusyError("the answer was lost")
        return True

    def files(self) -> list[str]:
        """Paths of all objects that the table names."""
        return sorted(self._state()[1])

    def records(self) -> int:
        """Return the number of records in all objects together."""
        return sum(self._state()[1].values())

    def look(self) -> TableLook | None:
        """Return its content as tools without a cluster see it; None = there is no table."""
        owner = self._owner()
        if owner is None:
            return None
        revisions, named, commits = self._state(owner)
        numbers = range(max(revisions, default=-1) + 1)
        last = tuple(revisions.get(each, 0) for each in numbers)
        about = f"icecore cluster {owner} of a simulation"
        removed = frozenset(
            path
            for number in range(commits)
            for path in json.loads(self._bucket.objects[self._key(number)])["remove"]
        )
        return TableLook("", about, frozenset(named), last, removed)

    def take_over(self) -> None:
        """Give it to this cluster, whoever had it."""
        owner = self._owner()
        if owner not in (None, self._cluster):
            _, _, commits = self._state(owner)
            data = json.dumps({"cluster": self._cluster, "add": {}, "remove": []}).encode()
            self._bucket.put(self._key(commits), data)

    def _key(self, commit: int) -> str:
        return f"{self._folder}/{commit:020d}.json"

    def _owner(self) -> str | None:
        """Return the cluster of the last commit; None = there is none."""
        prefix = f"{self._folder}/"
        last = max((each for each in self._bucket.objects if each.startswith(prefix)), default="")
        return str(json.loads(self._bucket.objects[last])["cluster"]) if last else None

    def _state(self, owner: str | None = None) -> tuple[dict[int, int], dict[str, int], int]:
        """Revisions by partition, records by path, how many commits there are."""
        self._check()
        if self._bucket.faults.strikes("refused"):
            raise ObjectStoreBusyError("503 Slow Down")
        revisions, named, commits = dict[int, int](), dict[str, int](), 0
        if (found := self._owner()) not in (None, owner or self._cluster):
            raise ObjectStoreError(f"it is a table of {found}")
        while data := self._bucket.objects.get(self._key(commits)):
            commit = json.loads(data)
            if "partition" in commit:  # else another cluster took it over
                revisions[commit["partition"]] = commit["revision"]
            for path in commit["remove"]:
                del named[path]
            named |= commit["add"]
            commits += 1
        return revisions, named, commits

    def _check(self) -> None:
        if self._process is not None:
            self._process.check()
