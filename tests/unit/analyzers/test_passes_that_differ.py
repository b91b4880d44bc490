"""What is said where one side began more forwards than the other, and the calls alone do not tell why."""

from pathlib import Path

from distdiag.findings import Verdict
from tests.logs import Logs
from tests.stuck import LOG, STEP, TIMED_OUT, train, trained, verdict


def stopped_after(tmp_path: Path, usual: int, odd: int) -> Verdict:
    """Three ranks, of which rank 1 makes another number of passes; whoever is through goes to a barrier."""
    logs = Logs(world_size=3)
    for rank in logs:
        passes = odd if rank.rank == 1 else usual
        for _ in range(min(usual, odd)):
            train(rank)
        rank.forwards = int(passes > min(usual, odd))
        call = rank.all_reduce(STEP, pending=True) if rank.forwards else rank.barrier(LOG, pending=True)
        rank.done(call, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, STEP).exit(1)
    return verdict(logs, tmp_path)


def test_a_rank_with_fewer_passes_may_have_skipped_one(tmp_path: Path) -> None:
    found = stopped_after(tmp_path, 5, 4)

    assert (found.name, found.culprits) == ("sequence-divergence", (1,))
    assert "rank 1 skipped a pass earlier (4 forwards begun against 5), or issued a call too many here" in found.summary
    assert found.next_steps[0].startswith("see whether rank 1 skipped a pass in the loop around train.py:20")


def test_a_rank_with_more_passes_may_go_on_too_long(tmp_path: Path) -> None:
    found = stopped_after(tmp_path, 4, 5)

    assert (found.name, found.culprits) == ("sequence-divergence", (1,))
    assert "rank 1 made a pass more (5 forwards begun against 4), or left the others' call out" in found.summary
    assert found.next_steps[0].startswith("see why rank 1 goes on at train.py:20")


def test_another_operation_at_another_line_may_as_well_have_been_left_out(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        odd = rank.rank == 2
        call = rank.call("all_gather" if odd else "broadcast", "wrap.py:7" if odd else LOG, shape=[1], pending=True)
        rank.done(call, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, STEP).exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("op-mismatch", (2,))
    assert found.next_steps[1].endswith("see why rank 2 does not come to train.py:40")


def test_a_rank_that_came_out_of_joining_where_others_did_not_met_somebody_else(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        joining = rank.begin_phase("init_process_group", STEP)
        if rank.rank == 2:
            rank.sleep(0.1).end_phase("init_process_group", joining)
            rank.done(rank.all_reduce(STEP, pending=True), seconds=6.0, error=TIMED_OUT)
            rank.fault("RuntimeError", TIMED_OUT, STEP).exit(1)
        else:
            rank.pulses(STEP, seconds=9.0)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("group-creation-stuck", ())
    assert found.summary.startswith("init_process_group does not end for some ranks, and rank 2 came out of it")
    assert "rendezvous of its own" in found.next_steps[0]
    assert len(found.next_steps) == 1
