"""Calls that differ between ranks: which call, by whom, and when nobody can say which side is right."""

from pathlib import Path

import pytest

from distdiag.findings import Confidence
from tests.logs import Logs, RankLog
from tests.stuck import LOG, SAVE, STEP, fail, train, trained, verdict, wait_in


def gradients(rank: RankLog, shapes: tuple[int, ...]) -> None:
    rank.forwards = rank.backwards = 1
    for shape in shapes:
        rank.all_reduce(STEP, shape=(shape,))
    rank.end_step()


def test_a_gradient_left_out_is_no_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        gradients(rank, (3, 5, 7))
        gradients(rank, (3, 5, 7))
        rank.forwards = rank.backwards = 1
        rank.all_reduce(STEP, shape=(3,))
        fail(rank, rank.all_reduce(STEP, shape=(7 if rank.rank == 2 else 5,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (2,))
    assert "left out" in found.summary


def test_a_length_that_others_had_in_another_step_is_a_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for length in (4, 8, 16, 8):
            gradients(rank, (length,))
        rank.forwards = rank.backwards = 1
        fail(rank, rank.all_reduce(STEP, shape=(4 if rank.rank == 1 else 16,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq, found.step) == ("shape-mismatch", (1,), 5, 4)


def test_sizes_that_differ_between_the_arms_of_a_branch_are_a_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        site = SAVE if rank.rank == 0 else STEP
        for _ in range(3):
            rank.all_reduce(site)
        fail(rank, rank.all_reduce(site, shape=(5 if rank.rank == 0 else 4,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("shape-mismatch", (0,), 4)


def test_a_module_that_one_rank_did_not_run_is_named(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for name in ("root", "vision", "layers.0", "layers.1"):
            rank.all_gather(STEP, module=name)
        rank.end_step()
        rank.all_gather(STEP, module="root")
        if rank.rank != 1:
            rank.all_gather(STEP, module="vision")
        rank.all_gather(STEP, module="layers.0")
        fail(rank, rank.all_gather(STEP, module="layers.1", pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (1,), 6)
    assert "module vision" in found.summary


def test_two_ranks_are_shown_and_not_judged(tmp_path: Path) -> None:
    logs = trained(2)
    logs[0].all_reduce(LOG)
    for rank in logs:
        train(rank)
        train(rank)
        fail(rank, rank.barrier(SAVE, pending=True) if rank.rank else rank.all_reduce(STEP, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (), 4)
    assert found.sites[0] == "train.py:40"
    assert found.confidence is Confidence.MEDIUM


def test_a_tie_of_two_halves_blames_nobody(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs:
        fail(rank, rank.barrier(SAVE, pending=True) if rank.rank < 2 else rank.all_gather(LOG, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", ())


@pytest.mark.parametrize(("sent", "culprits"), [([1, 1, 2], None), ([1, 2, 1], (0,))])
def test_splits_are_compared_pair_by_pair(tmp_path: Path, sent: list[int], culprits: tuple[int, ...] | None) -> None:
    logs = Logs(world_size=3)
    sends = {0: sent, 1: [2, 1, 1], 2: [1, 2, 1]}
    expects = {0: [1, 2, 1], 1: [1, 1, 2], 2: [2, 1, 1]}
    for rank in logs:
        rank.call(
            "all_to_all_single",
            STEP,
            output_shapes=[[4]],
            input_splits=sends[rank.rank],
            output_splits=expects[rank.rank],
        )
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == (("healthy", ()) if culprits is None else ("split-mismatch", culprits))


@pytest.mark.parametrize(("odd", "usual", "culprits"), [(3, 2, (3,)), (1, 2, (1,)), (3, None, ())])
def test_of_one_pair_that_does_not_fit_the_rank_unlike_all_others_is_named(
    tmp_path: Path, odd: int, usual: int | None, culprits: tuple[int, ...]
) -> None:
    """Rank 3 sends less to rank 1 than it should, or rank 1 expects more; without a rule nobody can say."""
    logs = Logs(world_size=4)
    for rank in logs:
        sends, expects = [2, 2, 2, 2], [2, 2, 2, 2]
        if rank.rank == 3 == odd:
            sends[1] = 1
        if rank.rank == 1 == odd:
            expects[3] = 3
        if usual is None and rank.rank in (0, 2):
            sends, expects = ([2, 2, 3, 2], [2, 2, 5, 2]) if rank.rank == 0 else ([5, 2, 2, 2], [3, 2, 2, 2])
        rank.call("all_to_all_single", STEP, output_shapes=[[sum(expects)]], input_splits=sends, output_splits=expects)
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("split-mismatch", culprits)


def test_a_line_whose_calls_are_all_alike_differs_in_size(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce(STEP, shape=[12])
        if rank.rank == 2:
            rank.all_reduce(STEP, shape=[8])
        wait_in(rank, rank.all_reduce(STEP, shape=[12], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("shape-mismatch", (2,))


def test_a_loop_that_may_have_gone_round_once_more_is_not_said_to_lack_what_follows(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(2):
            for _ in range(3):
                rank.all_reduce(STEP, shape=[4])
            if rank.calls < 6 or rank.rank != 2:
                rank.all_reduce(LOG, shape=[1])
        wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (2,))
    assert "the calls alone cannot tell" in found.summary


def test_a_call_that_never_came_twice_in_a_row_is_no_loop_and_lacks_the_one_before_it(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(2):
            rank.all_reduce(LOG, shape=[1])
            rank.all_reduce(STEP, shape=[4])
        if rank.rank == 2:
            wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))
        else:
            rank.all_reduce(LOG, shape=[1])
            wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.site) == ("sequence-divergence", (2,), "train.py:40")
    assert "rank 2 left out all_reduce of 1 float32" in found.summary


def test_steps_say_in_which_of_them_a_call_was_left_out(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for step in range(4):
            for _ in range(2 if (rank.rank, step) == (1, 1) else 3):
                rank.all_reduce(STEP)
            rank.end_step()
        wait_in(rank, rank.barrier(SAVE, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (1,), 1)
    assert "left out all_reduce" in found.summary


def test_a_rank_that_reduces_in_another_way_is_found_though_nothing_fails(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.call("all_reduce", LOG, reduce_op="MAX" if rank.rank == 1 else "SUM")
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq, found.site) == ("op-mismatch", (1,), 4, "train.py:40")
    assert "rank 1 asks for MAX" in found.summary
    assert "ranks 0,2 ask for SUM" in found.summary


@pytest.mark.parametrize(("parts", "room", "culprit"), [((4, 4, 4), (4, 4, 5), 2), ((4, 4, 5), (4, 4, 4), 0)])
def test_a_part_of_a_scatter_that_does_not_fit_is_found_though_nothing_fails(
    parts: tuple[int, ...], room: tuple[int, ...], culprit: int, tmp_path: Path
) -> None:
    logs = trained(3)
    for rank in logs:
        outputs = [[part] for part in parts] if rank.rank == 0 else []
        rank.call("scatter", SAVE, shape=[room[rank.rank]], output_shapes=outputs, root=0)
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("shape-mismatch", (culprit,), 4)
    assert all(f" {size}" in found.summary for size in (parts[2], room[2]))


def test_sizes_that_differ_on_every_rank_are_all_told(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        fail(rank, rank.all_reduce(LOG, shape=[2, 5 + rank.rank], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("shape-mismatch", ())
    assert "rank 0 2x5, rank 1 2x6, rank 2 2x7" in found.summary
