"""All fault programs with the truth about them: our own, and those that lie beside the project, where they do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.runs import Fault

HERE = Path(__file__).parent
VERDICTS = HERE / "verdicts.json"
"""How often each of our own programs got its verdict when that was counted last."""
BESIDE = HERE.parents[2] / "shared" / "faults"
OTHERS_TO_FIND = frozenset({"loss_scale", "straggler", "moving_straggler", "garbage_collection", "tiny_collectives"})
"""Slow and silent ones of those beside the project: they neither hang nor die."""

CONTROLS, PARALLEL = "healthy controls", "FSDP, tensor, pipeline, expert, context parallel, three dimensions"
ABSENCES = "a rank does not come, comes late or dies"
DIFFERENCES = "calls left out or too many; their sizes, types, roots, splits"
ORDER = "groups, threads, order, sends and receives"
"""Rows of the table in which the programs are counted."""
HEALTHY, MISSING, DIED, LATE = ("healthy",), ("rank-missing",), ("rank-died",), ("late-rank",)
UNMATCHED, SHAPE, DTYPE = ("p2p-unmatched",), ("shape-mismatch",), ("dtype-mismatch",)
MEMORY, SEQUENCE, GROUPS = ("out-of-memory",), ("sequence-divergence",), ("group-mismatch",)


def _control(name: str, ranks: int, file: str = "controls") -> Fault:
    return Fault(name=name, worker=HERE / f"{file}.py", ranks=ranks, verdicts=HEALTHY, family=CONTROLS)


def _of(file: str, family: str, name: str, ranks: int, verdicts: tuple[str, ...], *culprits: int, **more: Any) -> Fault:
    return Fault(
        name=name,
        worker=HERE / f"{file}.py",
        ranks=ranks,
        verdicts=verdicts,
        culprits=culprits,
        family=family,
        **more,
    )


def _absent(*arguments: Any, **more: Any) -> Fault:
    return _of("absent", ABSENCES, *arguments, **more)


def _death(*arguments: Any, **more: Any) -> Fault:
    return _of("absent", ABSENCES, *arguments, **more)


def _late(*arguments: Any, **more: Any) -> Fault:
    return _of("late", ABSENCES, *arguments, **more)


def _joining(*arguments: Any, **more: Any) -> Fault:
    return _of("joining", ABSENCES, *arguments, **more)


def _calls(*arguments: Any, **more: Any) -> Fault:
    return _of("differing", DIFFERENCES, *arguments, **more)


def _arguments(*arguments: Any, **more: Any) -> Fault:
    return _of("differing", DIFFERENCES, *arguments, **more)


def _order(*arguments: Any, **more: Any) -> Fault:
    return _of("differing", ORDER, *arguments, **more)


def _message(*arguments: Any, **more: Any) -> Fault:
    return _of("differing", ORDER, *arguments, **more)


def _fit(*arguments: Any, **more: Any) -> Fault:
    return _of("messages", DIFFERENCES, *arguments, **more)


def _unseen(family: str, *arguments: Any, **more: Any) -> Fault:
    return _of("unseen", family, *arguments, **more)


def _dressed(family: str, *arguments: Any, **more: Any) -> Fault:
    return _of("dressed", family, *arguments, **more)


def _parallel(*arguments: Any, **more: Any) -> Fault:
    return _of("parallel", PARALLEL, *arguments, **more)


def _stages(*arguments: Any, **more: Any) -> Fault:
    return _of("microbatches", PARALLEL, *arguments, cause="micro-batches", **more)


MATRIX = (
    _control("healthy_mesh", 8),
    _control("healthy_evaluation", 3),
    _control("healthy_thread", 2),
    _control("healthy_members", 3),
    _control("healthy_join", 3),
    _control("healthy_loader", 2),
    _control("healthy_sharded", 2),
    _control("healthy_ring", 4),
    _control("healthy_metrics", 3),
    _control("healthy_tensor_parallel", 3, "parallel"),
    _control("healthy_schedule", 3, "parallel"),
    _control("healthy_chain", 3, "late"),
    _control("healthy_groups", 3, "late"),
    _control("healthy_joins_late", 3, "joining"),
    _control("healthy_permuted", 3, "joining"),
    _control("healthy_names", 3, "joining"),
    _control("healthy_subset", 4, "joining"),
    _control("healthy_counts", 4, "microbatches"),
    _control("healthy_room_to_spare", 3, "messages"),
    _control("healthy_bytes", 3, "messages"),
    _absent("loader_stuck", 3, MISSING, 1, cause="data-loading"),
    _absent("stage_computes", 4, MISSING, 2, cause="running", at_root=True),
    _absent("spins", 3, MISSING, 1, cause="running"),
    _absent("saving_stuck", 3, MISSING, 0, cause="checkpoint", at_root=True, stall_after=2.0),
    _absent("sharded_saving_stuck", 3, (*MISSING, "late-rank"), 1, cause="checkpoint", at_root=True),
    _absent("compiling", 3, MISSING, 2, cause="compile", at_root=True),
    _absent("key_never_set", 3, MISSING, 1, at_root=True),
    _absent("monitored", 3, MISSING, 2, at_root=True),
    _absent("joining_late", 3, MISSING, 2, at_root=True),
    _absent("stopped", 3, MISSING, 2, cause="frozen"),
    _absent("interpreter_held", 3, MISSING, 1, cause="frozen", at_root=True, stall_after=2.0),
    _absent("early_exit", 3, MISSING, 1, cause="exited"),
    _absent("late_checkpoint", 3, ("late-rank",), 0, mentions="save checkpoint"),
    _joining("launched_at_other_port", 4, GROUPS, 3, cause="other-address", mentions="3 joined at 127.0.0.1"),
    _joining("launched_at_other_address", 4, GROUPS, 3, cause="other-address", mentions="3 joined at 192.0.2.1"),
    _joining("launched_each_alone", 3, GROUPS, cause="other-address", mentions="at different places"),
    _joining("launched_in_halves", 4, GROUPS, cause="other-address", mentions="ranks 2-3 at"),
    _joining("launched_for_more", 4, GROUPS, 2, cause="other-world-size", mentions="a world of 6"),
    _joining("launched_for_fewer", 4, GROUPS, 1, cause="other-world-size", mentions="a world of 3"),
    _joining("launched_twice", 4, GROUPS, 2, cause="same-rank", mentions="2 processes"),
    _joining("launched_in_part", 4, MISSING, 2, mentions="left no log"),
    _joining("launched_beside_old", 4, DIED, 0, cause="exception", mentions="EADDRINUSE"),
    _joining("meets_at_other_port", 4, GROUPS, 1, cause="other-address"),
    _joining("names_other_file", 3, GROUPS, 2, cause="other-address", mentions="/other"),
    _joining("names_other_size", 4, GROUPS, 3, cause="other-world-size"),
    _joining("names_same_number", 4, GROUPS, 3, cause="same-rank", mentions="nobody came as rank 3"),
    _joining("brings_other_store", 4, GROUPS, 3, cause="other-address"),
    _joining("builds_other_store", 4, GROUPS, 3, cause="other-address"),
    _joining("store_without_one", 3, MISSING, 2, at_root=True),
    _late("chain_late", 3, LATE, 2, cause="data-loading"),
    _late("chain_late_in_time_for_one", 3, LATE, 2, cause="data-loading"),
    _late("groups_late", 3, LATE, 2, cause="data-loading", mentions="behind it rank 0"),
    _late("sender_late", 3, LATE, 1, at_root=True, mentions="too late"),
    _late("two_late", 4, LATE, 1, 3, cause="data-loading"),
    _late("two_senders_late", 4, LATE, 1, 3, cause="data-loading"),
    _death("raises", 3, DIED, 2, cause="exception", at_root=True),
    _death("raises_unnoticed", 3, DIED, 1, cause="exception", at_root=True),
    _death("worker_killed", 3, DIED, 2, cause="exception"),
    _death("killed", 3, DIED, 1, cause="killed"),
    _death("terminated", 3, DIED, 1, cause="killed"),
    _death("hard_exit", 3, DIED, 1, cause="exited"),
    _death("hard_exit_without_code", 3, DIED, 1, cause="exited"),
    _death("segmentation_fault", 3, DIED, 2, cause="aborted", at_root=True),
    _death("out_of_memory", 2, MEMORY, 0, at_root=True),
    _death("memory_error_caught", 3, MEMORY, 1, at_root=True),
    _death("host_memory", 3, MEMORY, 1, at_root=True),
    _unseen(ABSENCES, "two_are_stuck", 4, MISSING, 1, 3, cause="data-loading", mentions="rank 3 stood still"),
    _unseen(ABSENCES, "producer_died", 3, MISSING, 1, at_root=True, mentions="ValueError: corrupt shard 3"),
    _unseen(ABSENCES, "lock_held", 3, MISSING, 2, at_root=True),
    _unseen(ABSENCES, "gave_up_on_loss", 3, DIED, 2, cause="exited", at_root=True, mentions="sys.exit(1)"),
    _unseen(ABSENCES, "barrier_in_handler", 3, DIED, 1, cause="exception", at_root=True, mentions="no tokens"),
    _dressed(ABSENCES, "stage_raises", 3, DIED, 1, cause="exception", at_root=True, mentions="came to the top as"),
    _dressed(ABSENCES, "part_not_written", 3, DIED, 2, cause="exception", at_root=True, mentions="No space left"),
    _dressed(ABSENCES, "model_differs", 3, DIED, 1, cause="exception", mentions="rank 1 has 6 parameters"),
    _calls("guarded_gather", 3, SEQUENCE, 0, at_root=True),
    _calls("early_return", 3, SEQUENCE, 2, at_root=True),
    _calls("silent_in_subgroup", 4, SEQUENCE, 1, at_root=True),
    _calls("two_ranks_apart", 2, SEQUENCE, mentions="majority"),
    _calls("evaluated_on_one", 3, SEQUENCE, 0, at_root=True),
    _calls("clipped_on_one", 3, SEQUENCE, 1, at_root=True),
    _calls("stopped_early", 3, (*SEQUENCE, "uneven-batches"), 2),
    _calls("objects_differ", 3, (*SEQUENCE, "op-mismatch"), 1, at_root=True),
    _calls("ops_differ", 3, ("op-mismatch",), 2, at_root=True),
    _calls("loaders_uneven", 3, ("uneven-batches",), 2),
    _calls("loops_uneven", 3, (*SEQUENCE, "uneven-batches"), 1),
    _calls("skipped_batch", 3, ("skipped-steps",), 1),
    _calls("overflow_skipped", 3, ("skipped-steps",), 1),
    _arguments("shapes_differ", 3, ("shape-mismatch",), 2),
    _arguments("gathered_shapes_differ", 3, ("shape-mismatch",), 1, at_root=True),
    _arguments("types_differ", 3, ("dtype-mismatch",), 1, at_root=True),
    _arguments("roots_differ", 3, ("root-mismatch",), 1, at_root=True),
    _arguments("splits_differ", 3, ("split-mismatch",), 1, at_root=True),
    _unseen(DIFFERENCES, "gradient_missing", 3, SEQUENCE, 1, at_root=True, mentions="left out all_reduce"),
    _unseen(DIFFERENCES, "recomputed_apart", 3, SEQUENCE, 1, mentions="left out all_reduce of 4"),
    _unseen(DIFFERENCES, "list_too_short", 3, ("shape-mismatch",), 2, at_root=True),
    _unseen(DIFFERENCES, "reduced_apart", 3, ("op-mismatch",), 2, at_root=True, mentions="MAX"),
    _unseen(DIFFERENCES, "maximum_skipped", 3, SEQUENCE, 2, at_root=True, mentions="by MAX"),
    _unseen(DIFFERENCES, "part_too_small", 3, ("shape-mismatch",), 2, at_root=True),
    _dressed(DIFFERENCES, "error_swallowed", 3, SEQUENCE, 2, at_root=True, mentions="left out"),
    _dressed(DIFFERENCES, "evaluated_through_wrapper", 3, SEQUENCE, 0, at_root=True, mentions="issued broadcast"),
    _dressed(DIFFERENCES, "saved_by_most", 3, SEQUENCE, 1, at_root=True, mentions="left out"),
    _dressed(DIFFERENCES, "passes_differ", 3, SEQUENCE, 1, at_root=True, mentions="step 2: 5 forwards against 4"),
    _dressed(DIFFERENCES, "joined_in_part", 3, ("uneven-batches",), 0),
    _dressed(DIFFERENCES, "gradient_detached", 3, SEQUENCE, 1, at_root=True, mentions="left out"),
    _order("groups_swapped", 3, ("order-deadlock",), 2),
    _order("threads_race", 2, ("thread-race",)),
    _order("guarded_group", 3, GROUPS, 0, at_root=True),
    _order("members_alone", 3, GROUPS, 2),
    _order("groups_listed_apart", 4, GROUPS, 3, at_root=True),
    _order("mesh_shapes_differ", 4, GROUPS, 1, at_root=True),
    _order("group_after_sum", 3, ("group-creation-stuck", "order-deadlock"), 2, at_root=True),
    _fit("message_too_large", 3, SHAPE, mentions="rank 1 sent 8x16 float32 to rank 2"),
    _fit("message_too_small", 3, SHAPE, mentions="rank 1 sent 2x16 float32 to rank 2"),
    _fit("first_message_too_large", 3, SHAPE, mentions="rank 0 sent 8x16 float32 to rank 1"),
    _fit("batched_too_large", 2, SHAPE, mentions="rank 0 passes something else now"),
    _fit("message_of_other_type", 3, DTYPE, mentions="int32 to rank 2"),
    _fit("message_of_other_type_then_stuck", 3, DTYPE, mentions="int32 to rank 2"),
    _fit("half_as_wide_twice_as_many", 3, DTYPE, mentions="bfloat16 to rank 2"),
    _message("ring", 4, ("p2p-deadlock",), 0, 1, 2, 3, at_root=True),
    _message("both_receive", 2, ("p2p-deadlock",), 0, 1, at_root=True),
    _message("message_forgotten", 3, ("p2p-unmatched",), 1, at_root=True),
    _unseen(ORDER, "wrong_neighbour", 4, ("p2p-unmatched",), 2, cause="wrong-partner", at_root=True),
    _message("tags_differ", 2, ("p2p-deadlock", "p2p-unmatched"), 0, 1),
    _parallel("unit_skipped", 3, SEQUENCE, 1, mentions="vision"),
    _parallel("tensor_call_missing", 3, SEQUENCE, 2),
    _stages("stage_leaves_one_out", 4, UNMATCHED, 1, mentions="after 4 messages"),
    _stages("stage_has_one_more", 4, UNMATCHED, 2, mentions="rank 2 issued at least 6"),
    _stages("first_stage_has_one_more", 4, UNMATCHED, 0),
    _stages("last_stage_leaves_one_out", 4, UNMATCHED, 3),
    _stages("stage_by_turns_leaves_one_out", 4, UNMATCHED, 2),
    _stages("stage_by_turns_has_one_more", 4, UNMATCHED, 1),
    _stages("stage_of_three_leaves_one_out", 3, UNMATCHED, 1),
    _stages("stages_of_two_differ", 2, UNMATCHED, mentions="different numbers of micro-batches"),
    _stages("halves_differ", 4, UNMATCHED, mentions="ranks 0-1 issued at least 5"),
    _stages("schedule_has_one_more", 4, UNMATCHED, 1),
    _stages("schedule_by_turns_leaves_one_out", 4, UNMATCHED, 2),
    _parallel("stage_stuck", 3, MISSING, 1, cause="running"),
    _parallel("experts_skipped", 4, SEQUENCE, 3, at_root=True),
    _parallel("experts_disagree", 3, ("split-mismatch",), 2),
    _parallel("ring_send_missing", 4, ("p2p-unmatched",), 1),
    _parallel("mesh_loader_stuck", 8, MISSING, 5, cause="data-loading"),
    _parallel("mesh_call_missing", 8, SEQUENCE, 6),
    _dressed(PARALLEL, "shard_too_short", 4, ("uneven-batches",), 3),
    _parallel("mesh_rank_sleeps", 4, MISSING, 3, at_root=True),
)
"""Our own programs."""

ALIKE = frozenset(
    {
        *("launched_at_other_address", "launched_in_halves", "launched_for_fewer", "meets_at_other_port"),
        *("names_other_size", "names_same_number", "brings_other_store", "store_without_one", "healthy_subset"),
        *("healthy_permuted", "first_message_too_large", "batched_too_large", "message_of_other_type_then_stuck"),
        *("half_as_wide_twice_as_many", "healthy_room_to_spare", "first_stage_has_one_more"),
        *("last_stage_leaves_one_out", "stage_by_turns_has_one_more", "stage_of_three_leaves_one_out"),
        *("halves_differ", "schedule_by_turns_leaves_one_out"),
    }
)
"""Programs for which others stand in each run of the tests; the benchmark of verdicts runs them, too."""


def _beside() -> Iterator[Fault]:
    if not (BESIDE / "worker.py").exists():
        return
    for name, wanted in json.loads((BESIDE / "expected.json").read_text()).items():
        if name not in OTHERS_TO_FIND:
            yield Fault(
                name=name,
                worker=BESIDE / "worker.py",
                ranks=wanted["nproc"],
                verdicts=tuple(wanted["verdict"]),
                culprits=None if "culprits" not in wanted else tuple(wanted["culprits"]),
                cause=wanted.get("cause"),
                at_root=wanted.get("site") == "ROOT",
                mentions=wanted.get("evidence_mentions", ""),
                family="beside the project",
            )


SHARED = tuple(_beside())
"""Programs beside the project; none where they are not there."""
