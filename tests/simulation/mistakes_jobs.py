"""Seeded mistakes in what lets a job of Spark be killed and begun again; see ``mistakes``. The
principles are those of ``icecore.spark.runs``."""

from collections.abc import Mapping, Sequence
from typing import Any

from icecore.spark import snapshot
from icecore.spark.plan import Snapshot
from icecore.spark.runs import commits, offsets
from icecore.spark.runs.commits import CommitLog
from icecore.spark.runs.export import QUARANTINE, TABLE, ExportRun, StepWork
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.ledger import JobLedger, Step
from icecore.spark.runs.offsets import Offsets
from tests.simulation import job_backfills, job_exports
from tests.simulation.mistakes import Mistake, patch


def moved_before_they_are_noted() -> Mistake:
    """Principle of ledgers: a result goes to its place, and is noted then."""
    publish, note_done = JobLedger.publish, JobLedger.note_done

    def wrong(self: JobLedger, number: int, facts: Step) -> None:
        if "places" in facts:
            publish(self, facts)
        note_done(self, number, facts)

    return patch(JobLedger, "note_done", wrong)


def noted_before_their_files() -> Mistake:
    """Principle of ledgers: a step is noted when its files are still to be made."""

    def wrong(self: ExportRun, ledger: JobLedger, number: int, plan: Step) -> Step:
        starts, ends, staged = plan["start_offsets"], plan["end_offsets"], ledger.staging()
        records = sum(ends[each] - starts[each] for each in ends)
        ledger.note_done(number, {**plan, "records": records, "staged": ""})
        topic_id, fields = ledger.settings["topic_id"], ledger.settings["fields"]
        self._engine.make(StepWork(number, topic_id, fields, starts, ends, staged))
        for part in (TABLE, QUARANTINE):
            ledger.folder.try_move(f"{staged}/{part}", f"{part}/step={number:06}")
        return plan

    return patch(ExportRun, "_make", wrong)


def begun_steps_are_forgotten() -> Mistake:
    """Principle of ledgers: nobody looks for a step that was planned and not noted."""
    return patch(JobLedger, "planned", lambda *_: None)


def results_are_made_in_one_place() -> Mistake:
    """Principle of ledgers: the files of a killed run are counted as those of the next one."""
    return patch(JobLedger, "staging", lambda _: "_icecore/staging/mine")


def rival_notes_are_passed_over() -> Mistake:
    """Principle of ledgers: a run goes on although another one has noted the step."""

    def wrong(self: JobLedger, number: int, facts: Step) -> None:
        self.folder.write_json(f"_icecore/steps/{number:06}.done.json", facts)

    return patch(JobLedger, "note_done", wrong)


def noted_results_stay_aside() -> Mistake:
    """Principle of ledgers: nobody moves what a killed run has noted."""
    return patch(JobLedger, "publish_all", lambda *_: None)


def moves_are_believed() -> Mistake:
    """Principle of ledgers: a move that was cut off is not finished file by file."""
    return patch(JobFolder, "copy", lambda *_: None)


def other_settings_are_taken() -> Mistake:
    """Principle of ledgers: a run with other arguments goes on in the same folder."""
    return patch(JobLedger, "check", lambda _: None)


def any_topic_of_the_name_is_read() -> Mistake:
    """Principle of steps: records of another topic of the name are taken for those of a step."""
    options = offsets.step_options

    def wrong(*given: Any, **named: Any) -> dict[str, str]:
        return options(*given, **named) | {"topicId": ""}

    return patch(job_exports, "step_options", wrong)


def offsets_of_any_topic_are_taken() -> Mistake:
    """Principle of snapshots: offsets are not compared with the topic that they are of."""
    return patch(snapshot, "_check_ids", lambda *_: None)


def gaps_are_passed_over() -> Mistake:
    """Principle of steps: a job goes on behind records that are gone, though nobody allowed it."""
    left = offsets.left

    def wrong(found: Snapshot, before: Mapping[str, int], *, may_lose: bool) -> Any:
        return left(found, before, may_lose=True)

    return patch(offsets, "left", wrong)


def added_partitions_begin_at_their_end() -> Mistake:
    """Principle of steps: partitions that were added are read from where they end."""
    left = offsets.left

    def wrong(
        found: Snapshot, before: Mapping[str, int], *, may_lose: bool
    ) -> tuple[Offsets, Offsets]:
        ends = {str(each): part.high_watermark for each, part in found.partitions.items()}
        return left(found, ends | dict(before) if before else before, may_lose=may_lose)

    return patch(offsets, "left", wrong)


def commits_are_made_again() -> Mistake:
    """Principle of commits: steps that are in the log are committed once more."""
    last = job_exports.SimCommitLog.last

    def wrong(log: CommitLog, folder: JobFolder, table: str, done: Sequence[Step]) -> int:
        first = last(log) or 0  # type: ignore[arg-type]
        for number in range(first, len(done)):
            files = commits.files_of(folder, f"{table}/step={number:06}", done[number])
            log.commit(number, files)
        return len(done) - first

    return patch(commits, "bring_up", wrong)


def rows_have_another_name_each_time() -> Mistake:
    """Principle of backfills: the name of a write is not noted, so nobody recognises its rows."""
    plan = JobLedger.plan

    def wrong(self: JobLedger, number: int, wanted: Step) -> Step:
        plan(self, number, wanted)
        return wanted

    return patch(JobLedger, "plan", wrong)


def rows_go_to_any_topic_of_the_name() -> Mistake:
    """Principle of backfills: rows are appended to whichever topic has the name by now."""
    append = job_backfills.SimBackfill.append

    def wrong(self: job_backfills.SimBackfill, number: int, _: str, write_id: str) -> int:
        return append(self, number, "", write_id)

    return patch(job_backfills.SimBackfill, "append", wrong)
