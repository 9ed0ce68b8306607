"""Does the simulator notice mistakes? Each mutant is one, put into production's code.

``python -m tests.simulation.mutants [NAME...]`` runs worlds with each until one finds a problem. A
mutant that survives fails the run: the simulator can't see that part, or a second guard makes the
first needless; then that is written down in tests/simulation/README.md and the mutant breaks both.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import Pool

from tests.simulation import mistakes as protocol
from tests.simulation import mistakes_belief as belief
from tests.simulation import mistakes_bootstrap as bootstrap
from tests.simulation import mistakes_clocks as clocks
from tests.simulation import mistakes_deletion as deletion
from tests.simulation import mistakes_disks as disks
from tests.simulation import mistakes_election as election
from tests.simulation import mistakes_engines as engines
from tests.simulation import mistakes_forgotten as forgotten
from tests.simulation import mistakes_hand_over as hand_over
from tests.simulation import mistakes_index as index
from tests.simulation import mistakes_jobs as jobs
from tests.simulation import mistakes_late as late
from tests.simulation import mistakes_lookups as lookups
from tests.simulation import mistakes_poison as poison
from tests.simulation import mistakes_ports as ports
from tests.simulation import mistakes_registry as registry
from tests.simulation import mistakes_repeats as repeats
from tests.simulation import mistakes_restore as restore
from tests.simulation import mistakes_retention as retention
from tests.simulation import mistakes_shared as shared
from tests.simulation import mistakes_shortage as shortage
from tests.simulation import mistakes_sink as sink
from tests.simulation import mistakes_standby as standby
from tests.simulation import mistakes_storage as storage
from tests.simulation import mistakes_surplus as surplus
from tests.simulation import mistakes_tiering as tiering
from tests.simulation.mistakes import Mistake
from tests.simulation.scenarios import run_seed

SEEDS_MAX = 40
"""Maximum number of seeds for one mutant, over all its scenarios."""


@dataclass(frozen=True)
class Mutant:
    """One mistake, and the worlds in which it shows soonest."""

    mistake: Callable[[], Mistake]
    scenario: str
    first: int = 1
    """Seed of the first world to try; then the next ones, at last swarms."""
    is_rare: bool = False
    """It shows in one of ten worlds or so, so a dozen of them may well miss it."""

    @property
    def name(self) -> str:
        return self.mistake.__name__

    def worlds(self, seeds_max: int) -> list[tuple[str, int]]:
        """In this order; the last third of them swarms."""
        own = seeds_max - seeds_max // 3
        worlds = [(self.scenario, self.first + number) for number in range(own)]
        return [*worlds, *(("swarm", 1 + number) for number in range(seeds_max - own))]


MUTANTS: tuple[Mutant, ...] = (
    Mutant(protocol.ack_all_on_leader_alone, "smoke"),
    Mutant(disks.lost_disk_trusted, "further_disk_fails"),
    Mutant(protocol.quorum_of_one, "lonely_leader"),
    Mutant(protocol.quorum_over_isr, "lonely_leader"),
    Mutant(protocol.follower_reports_log_end, "blackout", 5),
    Mutant(protocol.lease_from_answer, "late_answers"),
    Mutant(protocol.no_duplicates_known, "smoke"),
    Mutant(protocol.gaps_are_appended, "overlapped", 12),
    Mutant(protocol.dedupe_answers_before_commit, "lonely_leader"),
    Mutant(protocol.successor_skips_snapshot, "smoke"),
    Mutant(protocol.shrink_before_answer, "lonely_leader", 2),
    Mutant(protocol.expand_only_after_answer, "unheard_answer"),
    Mutant(protocol.expand_at_quorum_end, "slow_joiner"),
    Mutant(protocol.append_while_sealing, "smoke", 2),
    Mutant(protocol.seal_without_catch_up, "sealed_alone"),
    Mutant(protocol.report_before_fence, "smoke"),
    Mutant(protocol.fence_lost_on_crash, "smoke"),
    Mutant(protocol.leader_resumes, "swarm"),
    Mutant(protocol.missing_is_empty, "lagging_third"),
    Mutant(protocol.rebuilt_without_certificate, "rebuilt"),
    Mutant(protocol.one_member_decides, "lagging_third"),
    Mutant(protocol.s3_without_isr_clause, "lonely_leader", 4),
    Mutant(protocol.seal_without_write_back, "smoke"),
    Mutant(protocol.coordinator_epoch_not_compared, "two_coordinators"),
    Mutant(election.standby_acts_early, "election"),
    Mutant(election.session_counts_from_the_answer, "election", 6),
    Mutant(election.timers_are_believed, "election"),
    Mutant(election.watch_gaps_are_passed_over, "election"),
    Mutant(standby.what_was_followed_is_believed, "election"),
    Mutant(standby.deletions_are_not_followed, "election"),
    Mutant(standby.head_is_not_compared, "standby_late_change"),
    Mutant(standby.an_old_etcd_gives_out_numbers, "standby_older_etcd"),
    Mutant(registry.any_incarnation_answers, "early_fence"),
    Mutant(registry.disk_may_go_back, "live_snapshot"),
    Mutant(registry.log_may_go_back, "log_restored"),
    Mutant(registry.lost_answer_is_refusal, "lost_answer"),
    Mutant(registry.watermarks_forgotten, "young_snapshot"),
    Mutant(registry.changes_of_nodes_are_lost, "smoke"),
    Mutant(registry.lost_changes_of_nodes_are_passed_over, "pushes_are_lost"),
    Mutant(registry.metadata_may_go_back, "older_metadata"),
    Mutant(registry.adopted_ids_are_given_out_again, "adopted_metadata"),
    Mutant(registry.only_seals_come_back, "adopted_metadata"),
    Mutant(storage.ack_before_sync, "blackout"),
    Mutant(storage.index_before_data, "torn_creation"),
    Mutant(storage.no_folder_sync, "blackout"),
    Mutant(storage.sync_is_retried, "lagging_third", 3),
    Mutant(storage.damage_is_cut_off, "lagging_third", 2),
    Mutant(storage.page_cache_is_believed, "unstored_failure"),
    Mutant(storage.nothing_lies_behind, "blackout"),
    Mutant(storage.cut_at_watermark, "blackout"),
    Mutant(storage.unknown_files_deleted, "torn_creation"),
    Mutant(engines.memory_comes_back_empty, "memory_death"),
    Mutant(engines.database_not_synced, "database_blackout"),
    Mutant(deletion.grace_ignored, "deleted_for_a_while"),
    Mutant(late.async_replica_counts_after_crash, "late_blackout"),
    Mutant(late.stale_clean_marker, "late_blackout"),
    Mutant(late.late_seal_not_synced, "late_blackout"),
    Mutant(late.offsets_are_given_out_again, "late_blackout"),
    Mutant(late.stop_without_sync, "late_stop"),
    Mutant(late.restart_empty_too_early, "late_survivor"),
    Mutant(lookups.plan_is_believed, "seals_are_late"),
    Mutant(lookups.unnamed_counts_as_searched, "seals_are_late"),
    Mutant(lookups.holes_are_passed_over, "successors_lead_first"),
    Mutant(lookups.restarted_leader_answers, "leaders_are_restarted"),
    Mutant(lookups.gaps_are_skipped, "swarm", is_rare=True),
    Mutant(retention.intent_before_start, "records_expire"),
    Mutant(retention.tails_go, "records_expire"),
    Mutant(retention.wall_clock_counts, "records_expire", 2),
    Mutant(retention.start_goes_back, "records_expire"),
    Mutant(retention.young_segments_go, "records_expire"),
    Mutant(retention.skipped_in_silence, "records_expire"),
    Mutant(retention.any_topic_gives_room, "disks_fill"),
    Mutant(retention.room_is_made_at_once, "disk_seems_full"),
    Mutant(retention.room_is_made_for_ever, "disk_seems_full"),
    Mutant(tiering.published_without_proof, "segments_are_tiered"),
    Mutant(tiering.copies_leave_first, "segments_are_tiered"),
    Mutant(tiering.metadata_are_believed, "bucket_emptied"),
    Mutant(tiering.tables_are_believed, "tables_go_back"),
    Mutant(tiering.deletions_are_kept_quiet, "deletions_are_told"),
    Mutant(tiering.starts_are_kept_quiet, "deletions_are_told"),
    Mutant(tiering.current_attempt_is_swept, "segments_are_tiered", 2),
    Mutant(tiering.closed_attempt_is_forgotten, "segments_are_tiered"),
    Mutant(restore.late_uploads_stay_away, "clusters_are_restored"),
    Mutant(restore.deleted_topics_come_back, "clusters_are_restored", 18),
    Mutant(restore.log_starts_are_not_read, "clusters_are_restored", 8),
    Mutant(restore.restored_offsets_are_given_out_again, "clusters_are_restored"),
    Mutant(restore.adopted_copies_are_not_published, "adopted_from_bucket"),
    Mutant(tiering.sources_go_first, "segments_are_tiered"),
    Mutant(poison.contents_not_checked, "poisoned"),
    Mutant(repeats.confirm_looks_once, "repeated_open"),
    Mutant(repeats.orders_for_any_incarnation, "late_open"),
    Mutant(repeats.two_write_backs, "double_create"),
    Mutant(repeats.half_a_copy_counts, "half_copied"),
    Mutant(repeats.stale_producer_state, "restarted_when_sealed"),
    Mutant(belief.seal_is_believed, "forged_seal"),
    Mutant(belief.only_watermarks_are_compared, "forged_seal"),
    Mutant(belief.other_digest_is_damage, "forged_digests"),
    Mutant(belief.orders_set_aside, "forged_write_back"),
    Mutant(belief.orders_cut_below_watermark, "forged_write_back"),
    Mutant(belief.any_stream_counts, "forged_heartbeats"),
    Mutant(belief.promise_is_kept_quiet, "forged_fence"),
    Mutant(belief.recovery_promises_too_little, "forged_fence"),
    Mutant(belief.any_coordinator_epoch_is_believed, "forged_coordinator_epoch"),
    Mutant(belief.orders_teach_coordinator_epochs, "next_coordinator"),
    Mutant(belief.orders_are_the_record, "forged_loss"),
    Mutant(belief.used_ids_are_tried_one_by_one, "used_ids", 3),
    Mutant(belief.opened_first_stays, "used_ids", 3),
    Mutant(belief.any_disk_is_let_in, "foreign_disk"),
    Mutant(forgotten.nobody_asks_what_a_node_holds, "nodes_are_forgotten"),
    Mutant(forgotten.incarnations_begin_anew, "nodes_are_forgotten"),
    Mutant(forgotten.who_registers_has_a_record, "nodes_are_forgotten"),
    Mutant(forgotten.drained_nodes_get_new_segments, "nodes_are_drained"),
    Mutant(forgotten.drained_copies_count, "nodes_are_drained"),
    Mutant(forgotten.another_copy_goes_first, "nodes_are_drained"),
    Mutant(bootstrap.first_answer_is_believed, "cut_off_bootstrap"),
    Mutant(shortage.shortage_is_a_failed_sync, "descriptors_run_out"),
    Mutant(shortage.shortage_is_damage, "descriptors_run_out"),
    Mutant(shortage.recovery_index_first, "dies_in_recovery"),
    Mutant(shortage.index_rot_ends_the_node, "index_rots"),
    Mutant(ports.folder_not_synced, "folders_lost"),
    Mutant(ports.write_error_ignored, "failing_writes"),
    Mutant(ports.seek_keeps_old_records, "smoke"),
    Mutant(index.index_ahead_of_data, "smoke", 2),
    Mutant(index.entries_lost_in_merge, "swarm", 14, is_rare=True),
    Mutant(index.entries_lost_at_seal, "smoke", 4),
    Mutant(shared.shared_group_not_synced, "shared_blackout"),
    Mutant(shared.shared_file_freed_too_early, "shared_smoke"),
    Mutant(shared.dead_batches_come_back, "shared_blackout", 16, is_rare=True),
    Mutant(shared.shared_damage_condemns_nobody, "shared_lagging_third", 2),
    Mutant(surplus.listed_is_enough, "one_too_many"),
    Mutant(surplus.dropped_for_ever, "one_too_many"),
    Mutant(surplus.strays_stay, "one_too_many"),
    Mutant(hand_over.hand_over_drops_first, "shared_smoke"),
    Mutant(hand_over.hand_over_not_synced, "shared_smoke"),
    Mutant(hand_over.extraction_loses_the_last_batch, "shared_smoke"),
    Mutant(hand_over.dropped_is_damage, "database_blackout", first=23, is_rare=True),
    Mutant(clocks.append_times_expire_producers, "clock_ahead"),
    Mutant(sink.new_rows_wait_for_nobody, "sink_divides_otherwise"),
    Mutant(sink.settled_before_its_rows_come, "sink_divides_otherwise"),
    Mutant(sink.attempts_have_no_number, "sink_divides_otherwise"),
    Mutant(sink.tasks_of_before_have_no_weight, "sink_divides_otherwise"),
    Mutant(sink.one_leader_is_asked, "sink_divides_otherwise"),
    Mutant(sink.duplicates_are_not_compared, "sink_divides_otherwise"),
    Mutant(sink.fewer_rows_are_enough, "sink_divides_otherwise"),
    Mutant(sink.old_leaders_are_believed, "sink_asks_an_old_leader"),
    Mutant(sink.a_topic_without_a_note_is_taken, "sink_topic_is_made_again"),
    Mutant(sink.each_task_finds_its_topic, "sink_topic_is_made_again"),
    Mutant(jobs.moved_before_they_are_noted, "exports_meet"),
    Mutant(jobs.noted_before_their_files, "exports_are_killed"),
    Mutant(jobs.begun_steps_are_forgotten, "exports_are_killed"),
    Mutant(jobs.results_are_made_in_one_place, "exports_are_killed"),
    Mutant(jobs.rival_notes_are_passed_over, "exports_meet"),
    Mutant(jobs.noted_results_stay_aside, "exports_are_killed"),
    Mutant(jobs.moves_are_believed, "exports_are_killed", 27),
    Mutant(jobs.other_settings_are_taken, "exports_are_killed"),
    Mutant(jobs.any_topic_of_the_name_is_read, "exports_lose_records"),
    Mutant(jobs.offsets_of_any_topic_are_taken, "exports_lose_records", 3),
    Mutant(jobs.gaps_are_passed_over, "exports_lose_records", 7),
    Mutant(jobs.added_partitions_begin_at_their_end, "exports_lose_records", 6),
    Mutant(jobs.commits_are_made_again, "exports_are_killed", 6),
    Mutant(jobs.rows_have_another_name_each_time, "backfills_are_killed"),
    Mutant(jobs.rows_go_to_any_topic_of_the_name, "backfills_are_killed", 54),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant."""

    name: str
    worlds: int
    took_s: float
    killed_by: tuple[str, int] | None = None
    problem: str = ""

    def __str__(self) -> str:
        took = f"{self.worlds} worlds, {self.took_s:.0f} s"
        if self.killed_by is None:
            fate = "BROKEN" if self.problem else "SURVIVED"
            return f"{fate} {self.name}: {self.problem or took}"
        scenario, seed = self.killed_by
        return f"killed {self.name} by {scenario} {seed}, {took}: {self.problem}"


def hunt(mutant: Mutant, seeds_max: int) -> Outcome:
    """Run worlds until one has a problem."""
    began_s = time.monotonic()
    with mutant.mistake():
        for count, world in enumerate(mutant.worlds(seeds_max), 1):
            problems = run_seed(*world).problems
            if problems:
                took_s = time.monotonic() - began_s
                return Outcome(mutant.name, count, took_s, world, problems[0][:120])
    return Outcome(mutant.name, seeds_max, time.monotonic() - began_s)


def _hunt(job: tuple[str, int]) -> Outcome:
    name, seeds_max = job
    try:
        return hunt(next(each for each in MUTANTS if each.name == name), seeds_max)
    except Exception as error:  # the others are hunted all the same
        return Outcome(name, 0, 0.0, problem=repr(error)[:200])


def make_pool(jobs: int) -> Pool:
    """Processes that begin without anything of this one."""
    return get_context("spawn").Pool(jobs)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when a mutant survives."""
    names = [mutant.name for mutant in MUTANTS]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; all without")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX, help="worlds per mutant")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(names)
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.mutants", *sys.argv[1:]])
    jobs = [(name, given.seeds_max) for name in given.names or names]
    outcomes: list[Outcome] = []
    with make_pool(given.jobs) as pool:
        for outcome in pool.imap_unordered(_hunt, jobs):
            outcomes.append(outcome)
            print(outcome, flush=True)
    survivors = sum(each.killed_by is None for each in outcomes)
    killed = len(outcomes) - survivors
    print(f"sim-mutants: mutants={len(outcomes)} killed={killed} survivors={survivors}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
