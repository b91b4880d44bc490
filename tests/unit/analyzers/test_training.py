"""Numbers, replicas and samples: what is said of made logs, and of whom nothing is said."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Finding, Severity
from distdiag.run import Run, window
from tests.logs import WORLD, Logs, RankLog

PARAMETERS = ["embed.weight", "head.weight"]
BATCHES = 12


def wrapped(logs: Logs, *, group: str = WORLD, name: str = "DistributedDataParallel") -> None:
    """Let all ranks wrap their model so that a group averages its gradients."""
    for rank in logs:
        rank.add(
            events.Wrapper(
                wrapper=1, name=name, group=group, time_ns=rank.now_ns, parameters=PARAMETERS, size_bytes=4096
            )
        )


def checked(rank: RankLog, *digests: int) -> None:
    """Write the checksum of a replica with one digest a parameter."""
    rank.add(
        events.Numerics(
            step=rank.step,
            time_ns=rank.now_ns,
            wrapper=1,
            checksum=hash(digests) & 0xFFFFFFFF,
            digests=b"".join(each.to_bytes(4, "little") for each in digests),
        )
    )


def noted(rank: RankLog, **fields: Any) -> None:
    rank.add(events.Numerics(step=rank.step, time_ns=rank.now_ns, **fields))


def stepped(rank: RankLog, **call: Any) -> None:
    """Make the calls of a step, and end it."""
    rank.all_reduce(**call)
    rank.end_step()


def serious(run: Run) -> list[Finding]:
    return [each for each in diagnose(run).findings if each.severity is not Severity.INFO]


def drew(rank: RankLog, ids: Sequence[Sequence[int]], *, content: int = 0, trained: bool = True) -> None:
    """Take batches of samples with these ids, whose content depends on ``content`` too."""
    rank.add(events.Loader(loader=1, time_ns=rank.now_ns, dataset="Pairs", length=1000, sampler="RandomSampler"))
    for number, batch in enumerate(ids):
        contents = [hash((each, content)) & 0xFFFFFFFF for each in batch]
        fact: dict[str, Any] = {"batch": number, "step": rank.step, "loader": 1}
        rank.add(events.Batch(edge="begin", time_ns=rank.now_ns, trained=trained, **fact))
        rank.sleep(0.001)
        rank.add(
            events.Batch(
                edge="end",
                time_ns=rank.now_ns,
                ids=list(batch),
                contents=contents,
                fields=[hash(tuple(contents)) & 0xFFFFFFFF],
                **fact,
            )
        )
        stepped(rank)


def ids(first: int, size: int = 4) -> list[list[int]]:
    return [[first + size * batch + place for place in range(size)] for batch in range(BATCHES)]


# ---- replicas -------------------------------------------------------------------------------------------------------
def test_two_replicas_that_differ_accuse_neither(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs)
    for rank in logs:
        for step in range(3):
            checked(rank, 7, 8 + step + (rank.rank if step == 2 else 0))
            stepped(rank)
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.culprits, found.step) == ("replica-desync", (), 2)
    assert "head.weight; in step 1 all were equal" in found.summary
    assert not any("CHECKSUM_EVERY" in text for text in found.action), "the exact step is known"


def test_replicas_that_never_were_equal_are_looked_for_in_how_they_were_made(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    wrapped(logs)
    for rank in logs:
        for step in range(3):
            checked(rank, 7 + step + (rank.rank == 1), 8 + step + (rank.rank == 1))
            stepped(rank)
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.culprits, found.step) == ("replica-desync", (1,), 0)
    assert found.action[0].startswith("find out how rank 1 came by its weights")


def test_parameters_that_the_wrapper_does_not_know_are_told_as_that(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs)
    for rank in logs:
        for step in range(3):
            checked(rank, 7 + step, 8 + step, 9 + step * rank.rank)
            stepped(rank)
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.cause, found.step) == ("replica-desync", "added-later", 1)
    assert "1 of 3 parameters differs, those that the model got after DDP had wrapped it" in found.summary


def test_sharded_parameters_are_no_replicas(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs, name="fully_shard")
    for rank in logs:
        checked(rank, rank.rank)
        stepped(rank)
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


def test_replicas_are_compared_within_their_group_only(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        rank.group(f"dp{rank.rank % 2}", [rank.rank % 2, rank.rank % 2 + 2])
        rank.add(
            events.Wrapper(
                wrapper=1,
                name="DistributedDataParallel",
                group=f"dp{rank.rank % 2}",
                time_ns=rank.now_ns,
                parameters=PARAMETERS,
            )
        )
        checked(rank, rank.rank % 2, 5)
        stepped(rank, group=f"dp{rank.rank % 2}")
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


def test_replicas_full_of_nothing_are_not_compared(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    wrapped(logs)
    for rank in logs:
        for step in range(4):
            checked(rank, step if step < 3 else 100 + rank.rank)
            if step >= 2 and (rank.rank == 1 or step == 3):
                noted(rank, loss="nan", nonfinite=["loss"])
            stepped(rank)
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.culprits, found.step) == ("non-finite", (1,), 2)


def test_first_step_is_found_in_logs_too_long_to_be_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(world_size=3)
    wrapped(logs)
    for rank in logs:
        for step in range(400):
            bad = step >= 20 and (rank.rank == 2 or step > 20)
            noted(rank, loss="nan" if bad else 1.0, nonfinite=["loss"] if bad else [])
            stepped(rank)
        rank.exit()
    monkeypatch.setattr(window, "WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr(window, "LEAST_BYTES", 16 << 10)
    monkeypatch.setattr(window, "HEAD_BYTES", 4 << 10)
    run = logs.load(tmp_path)
    assert run.numerics["step"].min() > 20

    found = next(each for each in serious(run) if each.name == "non-finite")

    assert (found.culprits, found.step) == ((2,), 20)


def test_modules_of_a_model_that_is_spoiled_already_are_not_told(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        for step in range(3):
            spoiled = rank.rank == 1 if step == 1 else step == 2
            where = {"module": "embed", "origin": "parameters"} if step == 2 else {}
            noted(rank, loss="nan" if spoiled else 1.0, nonfinite=["loss"] if spoiled else [], **where)
            stepped(rank)
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.culprits, found.step) == ("non-finite", (1,), 1)
    assert not any("embed" in text for text in found.evidence)
    assert any("DISTDIAG_NUMERICS=modules" in text for text in found.action)


def test_gradients_that_overflow_under_a_scaler_are_no_finding(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs)
    for rank in logs:
        for step in range(4):
            over = step < 2
            noted(
                rank,
                loss=2.0,
                loss_scale=65536.0 / 2**step,
                skipped=over,
                nonfinite=["grad_norm", "gradient"] if over else [],
                grad_norm="inf" if over else 1.0,
            )
            stepped(rank)
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


def test_loss_scales_of_ranks_that_average_nothing_may_differ(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        noted(rank, loss=2.0, loss_scale=2.0**rank.rank)
        stepped(rank)
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_averaged_by_hand_after_no_sync_are_in_order(by_hand: bool, tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs)
    for rank in logs:
        for _ in range(3):
            rank.forwards = rank.backwards = 1
            rank.add(events.Numerics(step=rank.step, time_ns=rank.now_ns, wrapper=1, unsynchronised="no_sync"))
            stepped(rank, shape=(1024,) if by_hand else (1,))
        rank.exit()

    assert [each.name for each in serious(logs.load(tmp_path))] == ([] if by_hand else ["missing-gradient-sync"])


# ---- samples --------------------------------------------------------------------------------------------------------
def test_same_samples_on_two_data_parallel_ranks_are_found(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    wrapped(logs)
    for rank in logs:
        drew(rank, ids(0 if rank.rank < 2 else 500))
        rank.exit()

    (found,) = serious(logs.load(tmp_path))

    assert (found.name, found.culprits, found.step) == ("duplicate-samples", (0, 1), 0)
    assert "12 of 12 batches" in found.summary


@pytest.mark.parametrize("reason", ["other content", "not trained on", "no data parallelism", "share a group", "send"])
def test_equal_ids_accuse_nobody_where(reason: str, tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    if reason != "no data parallelism":
        wrapped(logs)
    for rank in logs:
        if reason == "share a group":
            rank.group("context", [0, 1])
            rank.in_phase("forward").all_gather(group="context")
            rank.in_phase("")
        if reason == "send":
            (rank.send if rank.rank == 0 else rank.recv)(1 - rank.rank)
        drew(rank, ids(0), content=rank.rank * (reason == "other content"), trained=reason != "not trained on")
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


def test_samples_repeated_to_fill_the_last_batch_are_in_order(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    wrapped(logs)
    for rank in logs:
        drew(rank, [*ids(500 * rank.rank)[:-1], [0, 1, 2, 3]])
        rank.exit()

    assert serious(logs.load(tmp_path)) == []


def diverging(growth: float, *, alone: bool = False) -> Logs:
    """Return logs in which the loss grows by a factor each step, until it is no number; ``alone``: on rank 1."""
    logs = Logs(world_size=2)
    for step in range(8):
        for rank in logs:
            rank.step = step
            if step < 7 or (alone and rank.rank == 0):
                noted(rank, loss=growth**step)
            else:
                noted(rank, loss="nan", nonfinite=["loss"])
            stepped(rank)
    return logs


def test_a_loss_that_leaves_all_bounds_on_all_ranks_is_told_as_that(tmp_path: Path) -> None:
    (found,) = [each for each in serious(diverging(100.0).load(tmp_path)) if each.name == "non-finite"]

    assert (found.culprits, found.cause, found.severity) == ((), "diverged", Severity.WARNING)
    assert found.summary.startswith("the loss left all bounds on all of ranks 0-1, from 1 at first to 1e+12")


def test_a_loss_within_bounds_that_is_suddenly_no_number_is_an_error(tmp_path: Path) -> None:
    (found,) = [each for each in serious(diverging(1.5).load(tmp_path)) if each.name == "non-finite"]

    assert (found.cause, found.severity) == (None, Severity.ERROR)


def test_one_rank_alone_is_blamed_however_the_loss_grew(tmp_path: Path) -> None:
    (found,) = [each for each in serious(diverging(100.0, alone=True).load(tmp_path)) if each.name == "non-finite"]

    assert (found.culprits, found.severity) == ((1,), Severity.ERROR)
