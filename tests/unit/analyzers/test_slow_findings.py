"""Slow jobs made by hand: each cause is told by its name, ranks and numbers, and healthy ones by nothing."""

import dataclasses
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.performance import measure
from distdiag.analyzers.performance.rollups import calls_per_step
from distdiag.analyzers.slowness.roles import stages_of
from distdiag.findings import Confidence, Finding, Report
from distdiag.run import Run
from tests.logs import MONOTONIC_NS, Logs

STEPS = 40
TRANSFER = 0.002
PARTS = ("other", "data", "forward", "backward", "optimizer")
Parts = Mapping[str, float]
MOMENTS = ("time_ns", "start_ns", "end_ns", "wait_start_ns")


def steady(rank: int, step: int) -> Parts:
    """What a rank does itself in a step, in seconds."""
    return {"data": 0.002, "forward": 0.02, "backward": 0.03, "optimizer": 0.004, "other": 0.001}


def one(rank: int, part: str, seconds: float, *, often: float = 1.0) -> Callable[[int, int], Parts]:
    """Let one part of one rank's steps take longer, mostly."""

    def parts(each: int, step: int) -> Parts:
        usual = steady(each, step)
        late = each == rank and random.Random(step).random() < often
        return {**usual, part: usual[part] + seconds * late}

    return parts


def noisy(rank: int, step: int) -> Parts:
    """Ranks that share cores: now this one takes a few milliseconds longer, now that one."""
    chance = random.Random(rank * 1000 + step)
    return {part: seconds + chance.expovariate(1 / 0.004) for part, seconds in steady(rank, step).items()}


def trained(
    parts: Callable[[int, int], Parts] = steady,
    *,
    ranks: int = 4,
    clock: str = "wait",
    facts: Callable[[int, int], dict[str, Any]] = lambda rank, step: {},
    after: Callable[[Any, int], None] = lambda rank, step: None,
    steps: int = STEPS,
    size_bytes: int = 1 << 16,
    transfer: float = TRANSFER,
    ranks_per_host: int = 2,
) -> Logs:
    """A data-parallel job: every rank computes, and reduces its gradients at the end of the backward."""
    logs = Logs(world_size=ranks, ranks_per_host=ranks_per_host)
    begin = dict.fromkeys(range(ranks), 0.0)
    for step in range(steps):
        own = {rank.rank: parts(rank.rank, step) for rank in logs}
        arrive = {each: begin[each] + sum(own[each][part] for part in PARTS[:4]) for each in own}
        end = max(arrive.values()) + transfer
        for rank in logs:
            each = rank.rank
            rank.at(arrive[each]).in_phase("backward")
            rank.backwards = 1
            call = rank.all_reduce("train.py:33 step", shape=(size_bytes // 4,), pending=True)
            rank.at(end).done(call, clock=clock).in_phase("")
            rank.sleep(own[each]["optimizer"])
            durations = {f"{part}_ns": round(own[each][part] * 1e9) for part in ("data", "forward", "optimizer")}
            backward = own[each]["backward"] + end - arrive[each]
            rank.end_step(seconds=0.0, facts=facts(each, step), backward_ns=round(backward * 1e9), **durations)
            after(rank, step)
            begin[each] = (rank.now_ns - MONOTONIC_NS) / 1e9
    for rank in logs:
        _put_starts_right(rank.records)
        rank.exit()
    return logs


def _put_starts_right(records: list[events.Event]) -> None:
    """The first step began with the job."""
    first = next(record for record in records if isinstance(record, events.Step))
    first.start_ns = MONOTONIC_NS


def told(logs: Logs, directory: Path) -> Report:
    return diagnose(logs.load(directory))


def the_finding(logs: Logs, directory: Path) -> Finding:
    (finding,) = told(logs, directory).findings
    return finding


def shares_of(report: Report) -> list[tuple[float, ...]]:
    return [
        tuple(row[f"{name}_share"] for name in ("compute", "communication", "data", "wait"))
        for row in report.performance["ranks"]
    ]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("forward", "compute-straggler"),
        ("backward", "compute-straggler"),
        ("optimizer", "compute-straggler"),
        ("other", "compute-straggler"),
        ("data", "input-straggler"),
    ],
)
@pytest.mark.parametrize("clock", ["wait", "poll"])
def test_the_part_of_the_step_that_makes_one_rank_late_is_named(
    tmp_path: Path, part: str, name: str, clock: str
) -> None:
    finding = the_finding(trained(one(2, part, 0.03), clock=clock), tmp_path)

    assert (finding.name, finding.culprits, finding.victims, finding.cause) == (name, (2,), (0, 1, 3), part)
    assert finding.confidence is Confidence.HIGH
    assert "everyone waits 30 ms per step for rank 2" in finding.summary


def test_a_straggler_tells_what_would_be_gained(tmp_path: Path) -> None:
    finding = the_finding(trained(one(2, "forward", 0.03)), tmp_path)

    assert "without it a step would take 59 ms instead of 89 ms: 34 % of the job" in finding.summary
    assert "ranks 0-1,3 wait for it in all_reduce (train.py:33)" in finding.summary


def test_a_straggler_of_most_steps_is_less_sure(tmp_path: Path) -> None:
    finding = the_finding(trained(one(2, "forward", 0.03, often=0.88)), tmp_path)

    assert (finding.name, finding.confidence) == ("compute-straggler", Confidence.MEDIUM)


@pytest.mark.parametrize("parts", [steady, noisy, one(1, "forward", 0.03, often=0.3), one(1, "forward", 0.004)])
def test_even_noisy_and_seldom_late_ranks_are_healthy(tmp_path: Path, parts: Callable[[int, int], Parts]) -> None:
    assert told(trained(parts), tmp_path).findings == ()


def test_a_rank_that_waits_for_a_processor_is_no_straggler(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03))
    for record in logs[2].records:
        if isinstance(record, events.Step):
            record.queued_ns = 30_000_000

    assert told(logs, tmp_path).verdict.name == "healthy"


def test_where_processors_are_fought_over_nobody_is_accused(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.08))
    for record in logs[2].records:
        if isinstance(record, events.Step):
            record.queued_ns = 45_000_000  # it is late by 35 ms more

    assert told(logs, tmp_path).findings == ()


@pytest.mark.parametrize(("longer", "name"), [(0, "healthy"), (25_000_000, "compute-straggler")])
def test_where_the_queue_is_unknown_a_rank_has_to_have_computed_longer(tmp_path: Path, longer: int, name: str) -> None:
    logs = trained(one(2, "forward", 0.03))
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.cpu_ns = 50_000_000 + longer * (rank.rank == 2)

    assert told(logs, tmp_path).verdict.name == name


def test_two_slow_ranks_are_both_told_with_what_mending_both_gains(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return one(5 if rank == 5 else 2, "forward", 0.03)(rank, step)

    findings = told(trained(parts, ranks=8), tmp_path).findings

    assert [(each.name, each.culprits) for each in findings] == [
        ("compute-straggler", (2,)),
        ("compute-straggler", (5,)),
    ]
    assert all("a step would take 59 ms instead of 89 ms" in each.summary for each in findings)


def test_a_rank_whose_mending_gains_nothing_is_not_accused(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        usual = one(2, "forward", 0.02)(rank, step)
        late = rank != 2 and step % 3 == rank % 3
        return {**usual, "forward": usual["forward"] + 0.025 * late}

    assert told(trained(parts), tmp_path).findings == ()


def test_few_steps_accuse_nobody(tmp_path: Path) -> None:
    assert told(trained(one(2, "forward", 0.03), steps=8), tmp_path).findings == ()


def test_nobody_is_accused_on_devices_without_device_times(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03))
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Signature):
                record.device = "cuda"

    report = told(logs, tmp_path)

    assert report.findings == ()
    assert report.performance["ranks"][2]["own_step_seconds"] is None


def test_rank_order_of_the_waiting_is_told(tmp_path: Path) -> None:
    rows = told(trained(one(2, "forward", 0.03)), tmp_path).performance["ranks"]

    assert [row["waits_caused_seconds"] for row in rows] == pytest.approx([0.0, 0.0, 38 * 3 * 0.03, 0.0], rel=0.01)
    assert [row["waits_suffered_seconds"] for row in rows] == pytest.approx([1.14, 1.14, 0.0, 1.14], rel=0.01)
    assert rows[2]["came_last_share"] == 1.0


def test_the_parts_of_the_ledger_add_up_to_the_step(tmp_path: Path) -> None:
    for row in told(trained(noisy), tmp_path).performance["ranks"]:
        assert sum(row["ledger"].values()) == pytest.approx(row["step_seconds"], rel=0.001)
        assert sum(row[f"{name}_share"] for name in ("compute", "communication", "data", "wait")) == pytest.approx(
            1.0, abs=0.001
        )


# ---- clocks ---------------------------------------------------------------------------------------------------------
def moved(logs: Logs, hosts: Mapping[str, tuple[float, float]]) -> Logs:
    """Let the clocks of hosts be off by seconds, and drift by parts per million."""
    for rank in logs:
        seconds, ppm = hosts[rank.header.host]
        rank.header.wall_ns += round(seconds * 1e9)
        for record in rank.records:
            for name in MOMENTS:
                moment = getattr(record, name, None)
                if moment is not None:
                    setattr(record, name, round(MONOTONIC_NS + (moment - MONOTONIC_NS) * (1 + ppm / 1e6)))
    return logs


@pytest.mark.parametrize("clock", ["wait", "poll"])
@pytest.mark.parametrize("hosts", [{"node0": (0.5, 0.0), "node1": (-0.5, 50.0)}, {"node0": (0, -50), "node1": (0, 50)}])
def test_clocks_that_are_off_and_drift_change_nothing(
    tmp_path: Path, hosts: dict[str, tuple[float, float]], clock: str
) -> None:
    def slow_for_long(rank: int, step: int) -> Parts:
        usual = one(2, "backward", 0.06)(rank, step)
        return {**usual, "forward": usual["forward"] + (5.0 if step % 10 == 5 else 0.0)}

    straight = told(trained(slow_for_long, steps=200, clock=clock), tmp_path / "straight")
    skewed = told(moved(trained(slow_for_long, steps=200, clock=clock), hosts), tmp_path / "skewed")

    assert straight.verdict.name == "compute-straggler"
    assert (skewed.verdict.name, skewed.verdict.culprits) == (straight.verdict.name, straight.verdict.culprits)
    for was, now in zip(shares_of(straight), shares_of(skewed), strict=True):
        assert now == pytest.approx(was, abs=0.002)
    assert skewed.performance["clock_error_seconds"] < 0.001


def test_clocks_that_do_not_agree_leave_the_order_to_durations(tmp_path: Path) -> None:
    logs = trained(one(2, "backward", 0.05))
    for rank in logs.only(0, 1):
        for record in rank.records:
            if isinstance(record, events.Done):
                shift = random.Random(record.call).randint(0, 40_000_000)
                record.end_ns += shift

    report = told(logs, tmp_path)

    assert report.performance["clock_error_seconds"] > 0.001
    assert report.performance["ranks"][2]["came_last_share"] > 0.8


# ---- everybody ------------------------------------------------------------------------------------------------------
def test_data_that_is_late_on_all_ranks_starves_them(tmp_path: Path) -> None:
    def hungry(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.09}

    finding = the_finding(trained(hungry), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == ("data-starvation", (), (0, 1, 2, 3))
    assert "wait 90 ms of each 147 ms step" in finding.summary


def test_first_steps_with_cold_caches_starve_nobody(tmp_path: Path) -> None:
    def cold(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.09 if step < 20 else 0.001}

    assert told(trained(cold), tmp_path).findings == ()


def test_communication_without_waiting_bounds_a_job(tmp_path: Path) -> None:
    finding = the_finding(trained(transfer=0.08, size_bytes=64 << 20), tmp_path)

    assert (finding.name, finding.culprits, finding.op) == ("communication-bound", (), "all_reduce")
    assert "80 ms of each 137 ms step" in finding.summary
    assert any("64.0 MiB between 4 ranks: 80 ms, 1.26 GB/s" in said for said in finding.evidence)


def test_small_messages_that_take_long_are_no_matter_of_bandwidth(tmp_path: Path) -> None:
    assert told(trained(transfer=0.08, size_bytes=1 << 12), tmp_path).findings == ()


# ---- lengths --------------------------------------------------------------------------------------------------------
def lengths_of(rank: int, step: int) -> list[int]:
    chance = random.Random(rank * 1000 + step)
    return [chance.randint(100, 900) for _ in range(2)]


def by_length(rank: int, step: int) -> Parts:
    squares = sum(length**2 for length in lengths_of(rank, step))
    usual = steady(rank, step)
    return {**usual, "forward": squares * 2e-8, "backward": squares * 4e-8}


def test_uneven_lengths_are_told_apart_from_slow_ranks(tmp_path: Path) -> None:
    logs = trained(by_length, facts=lambda rank, step: {"lengths": lengths_of(rank, step)})

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("token-imbalance", (), "lengths")
    assert "sums of lengths and of their squares explain 100 %" in finding.evidence[0]


@pytest.mark.parametrize("of_run", [diagnose, lambda run: whole(run)])
def test_batches_say_what_the_user_did_not(tmp_path: Path, of_run: Callable[[Run], Report]) -> None:
    logs = trained(by_length)
    for rank in logs:
        for step in range(STEPS):
            lengths = lengths_of(rank.rank, step)
            squares = sum(length**2 for length in lengths)
            rank.add(
                events.Batch(batch=step, edge="end", time_ns=0, step=step, tokens=sum(lengths), tokens_squared=squares)
            )

    report = of_run(logs.load(tmp_path))

    assert (report.verdict.name, report.verdict.cause) == ("token-imbalance", "lengths")
    assert report.performance["tokens_per_second"] > 0


def test_a_rank_with_the_most_tokens_in_every_step_is_no_slow_rank(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 2000 if rank == 2 else 800 + step % 3})

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits) == ("token-imbalance", (2,))


def test_even_tokens_do_not_excuse_a_slow_rank(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 800 + (rank * 7 + step * 3) % 5})

    assert the_finding(logs, tmp_path).name == "compute-straggler"


def test_without_lengths_forward_and_backward_that_grow_together_say_it(tmp_path: Path) -> None:
    logs = trained(by_length)
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.cpu_ns = round(sum(by_length(rank.rank, record.step).values()) * 1e9)

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.confidence) == ("token-imbalance", Confidence.MEDIUM)
    assert "lengths were not told" in finding.evidence[0]


def routing(tokens: Callable[[int, int], int]) -> Callable[[Any, int], None]:
    """Let a router send so many tokens to the expert of each rank."""

    def exchanged(rank: Any, step: int) -> None:
        to, arriving = [tokens(each, step) // 4 for each in range(4)], [tokens(rank.rank, step) // 4] * 4
        splits = {"input_splits": to, "output_splits": arriving}
        rank.call("all_to_all_single", "moe.py:7 dispatch", seconds=0.0, **splits)

    return exchanged


def popular(rank: int, step: int) -> int:
    return 400 if rank == 2 else 96 + 4 * ((rank * 7 + step * 3) % 5)


def by_turns(rank: int, step: int) -> int:
    return 400 if rank == step % 4 else 96 + 4 * ((rank * 7 + step * 3) % 5)


@pytest.mark.parametrize(("tokens", "culprits"), [(popular, (2,)), (by_turns, ())])
def test_experts_with_more_tokens_are_no_slow_ranks(
    tmp_path: Path, tokens: Callable[[int, int], int], culprits: tuple[int, ...]
) -> None:
    logs = trained(
        lambda rank, step: {**steady(rank, step), "forward": 1e-4 * tokens(rank, step - 1)}, after=routing(tokens)
    )

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("token-imbalance", culprits, "experts")
    assert (finding.op, finding.site) == ("all_to_all_single", "moe.py:7")
    assert "2.2x as many as the average rank has" in finding.summary
    assert "400 tokens a step on the rank with the most, 178 on average" in finding.evidence


def test_a_few_more_tokens_do_not_excuse_a_rank_that_is_much_slower(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.06), after=routing(lambda rank, step: 104 if rank == 2 else 100))

    assert the_finding(logs, tmp_path).name == "compute-straggler"


# ---- pauses ---------------------------------------------------------------------------------------------------------
def pausing(
    kind: type[events.Event], ranks: tuple[int, ...], *, every: int, seconds: float
) -> Callable[[Any, int], None]:
    """Let some ranks pause now and then, before their next step's work."""

    def after(rank: Any, step: int) -> None:
        if rank.rank in ranks and step % every == every - 1:
            fields = {"generation": 2} if kind is events.GarbageCollection else {}
            record = kind(time_ns=rank.now_ns, duration_ns=round(seconds * 1e9), step=rank.step, **fields)
            rank.add(record).sleep(seconds)

    return after


@pytest.mark.parametrize(("kind", "name"), [(events.GarbageCollection, "gc-pause"), (events.Compile, "recompilation")])
def test_pauses_of_one_rank_are_told_by_their_kind(tmp_path: Path, kind: type[events.Event], name: str) -> None:
    finding = the_finding(trained(after=pausing(kind, (1,), every=5, seconds=0.2)), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == (name, (1,), (0, 2, 3))
    assert "200 ms at a time" in finding.summary
    assert "38 % of the job" in finding.summary


def test_a_rank_that_pauses_in_every_step_is_told_by_the_pauses_alone(tmp_path: Path) -> None:
    logs = trained(after=pausing(events.GarbageCollection, (1,), every=1, seconds=0.05))

    assert the_finding(logs, tmp_path).name == "gc-pause"


@pytest.mark.parametrize(("every", "seconds"), [(30, 0.2), (5, 0.002)])
def test_single_and_short_collections_are_healthy(tmp_path: Path, every: int, seconds: float) -> None:
    logs = trained(after=pausing(events.GarbageCollection, (1,), every=every, seconds=seconds))

    assert told(logs, tmp_path).findings == ()


def saving(ranks: tuple[int, ...]) -> Callable[[Any, int], None]:
    def after(rank: Any, step: int) -> None:
        if rank.rank in ranks and step % 8 == 7:
            number = rank.begin_phase("save checkpoint")
            rank.sleep(0.3).end_phase("save checkpoint", number)
            written = rank.begin_phase("checkpoint save")
            rank.end_phase("checkpoint save", written)
            rank.records[-1].bytes = 3 << 30

    return after


@pytest.mark.parametrize(("ranks", "culprits"), [((0,), (0,)), ((0, 1, 2, 3), ())])
def test_checkpoints_that_stop_training_are_told(
    tmp_path: Path, ranks: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    finding = the_finding(trained(after=saving(ranks)), tmp_path)

    assert (finding.name, finding.culprits) == ("checkpoint-stall", culprits)
    assert "300 ms at a time" in finding.summary
    assert ("rank 0 wrote 15.00 GiB in 5 saves, the others nothing" in finding.evidence) == bool(culprits)


# ---- many groups ----------------------------------------------------------------------------------------------------
def paired(slow: float = 0.0, *, pairs: int = 4, size_bytes: int = 1 << 20) -> Logs:
    """Pairs of ranks with a group each; that of the last pair takes longer."""
    logs = Logs(world_size=2 * pairs, ranks_per_host=1)
    for rank in logs:
        pair = rank.rank // 2
        rank.group(f"pair{pair}", (2 * pair, 2 * pair + 1))
        for step in range(20):
            rank.at(0.1 * step + 0.05)
            rank.all_reduce(
                "train.py:7 step",
                group=f"pair{pair}",
                shape=(size_bytes // 4,),
                seconds=0.004 + (slow if pair == pairs - 1 else 0.0),
            )
            rank.at(0.1 * step).end_step(seconds=0.1)
        rank.exit()
    return logs


def test_the_group_whose_link_is_slow_is_told(tmp_path: Path) -> None:
    finding = the_finding(paired(0.02), tmp_path)

    assert (finding.name, finding.culprits, finding.group) == ("slow-link", (6, 7), "pair3")
    assert "hosts node6, node7" in finding.summary
    assert "(6.0x)" in finding.summary


@pytest.mark.parametrize("logs", [paired(0.001), paired(0.02, pairs=2), paired(0.02, size_bytes=1 << 12)])
def test_small_differences_small_messages_and_two_groups_tell_no_slow_link(tmp_path: Path, logs: Logs) -> None:
    assert told(logs, tmp_path).findings == ()


def test_lateness_that_another_group_caused_goes_to_its_source(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for step in range(20):
        for rank in logs.only(0, 1):
            rank.members.setdefault("front", (0, 1)) if step else rank.group("front", (0, 1))
        for rank in logs.only(1, 2):
            rank.members.setdefault("back", (1, 2)) if step else rank.group("back", (1, 2))
        begin = 0.1 * step
        logs[0].at(begin + 0.05).all_reduce(group="front")  # late by itself
        logs[1].at(begin + 0.01).all_reduce(group="front", seconds=0.041)
        logs[1].at(begin + 0.052).all_reduce(group="back")  # late because of rank 0
        logs[2].at(begin + 0.01).all_reduce(group="back", seconds=0.043)
        for rank in logs:
            rank.at(begin).end_step(seconds=0.1)

    rows = told(logs, tmp_path).performance["ranks"]

    assert [row["waits_caused_seconds"] for row in rows] == pytest.approx([18 * 0.082, 0.0, 0.0], abs=0.02)


# ---- pipelines ------------------------------------------------------------------------------------------------------
def pipeline(last: float = 1.0, *, replicas: int = 2, stages: int = 3) -> Logs:
    """Stages of ranks that send to the next, and gradients that come back in the sum of a group at the end."""
    logs = Logs(world_size=replicas * stages)
    for step in range(20):
        for replica in range(replicas):
            at = 0.3 * step
            for stage in range(stages):
                rank = logs[stage * replicas + replica]
                work = 0.04 * (last if stage == stages - 1 else 1.0)
                rank.at(0.3 * step)
                if stage:
                    rank.recv(rank.rank - replicas, seconds=at - 0.3 * step + 0.001)
                    at += 0.001
                rank.sleep(work)
                at += work
                if stage < stages - 1:
                    rank.send(rank.rank + replicas)
        for rank in logs:
            rank.all_reduce(seconds=0.3 * step + 0.29 - (rank.now_ns - MONOTONIC_NS) / 1e9)
            rank.at(0.3 * step).end_step(seconds=0.3)
    for rank in logs:
        rank.exit()
    return logs


def test_stages_are_chains_of_messages(tmp_path: Path) -> None:
    assert dict(stages_of(pipeline().load(tmp_path))) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def test_the_stage_that_has_more_to_do_is_told_and_no_rank_of_it(tmp_path: Path) -> None:
    finding = the_finding(pipeline(last=1.8), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("stage-imbalance", (4, 5), "last-stage")


def test_even_stages_are_healthy(tmp_path: Path) -> None:
    assert told(pipeline(), tmp_path).findings == ()


# ---- many small calls -----------------------------------------------------------------------------------------------
def wrapped(units: int, size_bytes: int) -> Logs:
    """Two ranks that gather the parameters of many units one after another."""
    logs = Logs(world_size=2)
    for rank in logs:
        for step in range(12):
            rank.at(0.2 * step)
            for unit in range(units):
                rank.sleep(0.001)
                rank.call(
                    "all_gather_into_tensor",
                    "train.py:9 forward",
                    shape=(size_bytes // 4,),
                    module=f"layers.{unit}",
                    seconds=0.002,
                )
            rank.at(0.2 * step).end_step(seconds=0.2)
        rank.exit()
    return logs


def test_many_small_units_are_told_as_too_fine(tmp_path: Path) -> None:
    finding = the_finding(wrapped(50, 8 << 10), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("tiny-collectives", (), "wrapping")
    assert (
        "50 collectives a step at train.py:9, half of them under 8 KiB, take 100 ms of each 200 ms" in finding.summary
    )
    assert "50 FSDP units" in finding.summary


def test_steps_that_one_log_lost_do_not_count_for_the_others(tmp_path: Path) -> None:
    logs = wrapped(50, 8 << 10)
    logs[1].records = [r for r in logs[1].records if not (isinstance(r, events.Step) and r.step in (4, 6))]

    (finding,) = [each for each in told(logs, tmp_path).findings if each.name == "tiny-collectives"]

    assert "50 collectives a step at train.py:9, half of them under 8 KiB, take 100 ms" in finding.summary


@pytest.mark.parametrize("logs", [wrapped(10, 8 << 10), wrapped(50, 64 << 10)])
def test_few_or_large_collectives_are_not_tiny(tmp_path: Path, logs: Logs) -> None:
    assert "tiny-collectives" not in [finding.name for finding in told(logs, tmp_path).findings]


# ---- long logs ------------------------------------------------------------------------------------------------------
def test_whole_logs_say_the_same_as_frames(tmp_path: Path) -> None:
    run = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 100}).load(tmp_path)

    assert whole(run).performance["ranks"] == diagnose(run).performance["ranks"]
    assert whole(run).verdict.summary == diagnose(run).verdict.summary


def whole(run: Run) -> Report:
    """Diagnose a run as if its logs had been too long for its frames."""
    return diagnose(dataclasses.replace(run, quality=dataclasses.replace(run.quality, window_bytes=1)))


def test_records_of_steps_know_the_queue_for_processors() -> None:
    line = events.encode(events.Step(step=3, queued_ns=5))

    assert msgspec.json.decode(line) == {"kind": "step", "step": 3, "queued_ns": 5}


def with_sums(logs: Logs) -> Logs:
    """Add to each step the sums over its calls, as recording does."""
    for rank in logs:
        begun = {r.call: (r.start_ns, r.signature) for r in rank.records if isinstance(r, events.Call)}
        signatures = {r.signature: r for r in rank.records if isinstance(r, events.Signature)}
        sums: dict[str, dict[str, int]] = {}
        for record in rank.records:
            if isinstance(record, events.Done):
                start_ns, number = begun[record.call]
                key = f"{signatures[number].group}/{signatures[number].op}"
                sum_ = sums.setdefault(key, {"calls": 0, "bytes": 0, "duration_ns": 0, "wait_ns": 0})
                sum_["calls"] += 1
                sum_["bytes"] += signatures[number].size_bytes
                sum_["duration_ns"] += record.end_ns - start_ns
            elif isinstance(record, events.Step):
                record.rollups, sums = sums, {}
    return logs


def test_sums_of_steps_answer_where_calls_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_sums(trained(one(2, "forward", 0.03))).load(tmp_path)
    of_calls = diagnose(run)
    monkeypatch.setattr(sys.modules[measure.__module__], "MANY_CALLS", 1)

    of_sums = whole(run)

    assert (of_sums.verdict.name, of_sums.verdict.culprits) == ("compute-straggler", (2,))
    assert of_sums.performance["ranks"][2]["waits_caused_seconds"] == pytest.approx(
        of_calls.performance["ranks"][2]["waits_caused_seconds"], rel=0.01
    )
    for ours, theirs in zip(shares_of(of_sums), shares_of(of_calls), strict=True):
        assert ours == pytest.approx(theirs, abs=0.005)
    assert of_sums.performance["groups"] == of_calls.performance["groups"]


def test_many_calls_a_step_are_known_from_where_steps_ended(tmp_path: Path) -> None:
    assert calls_per_step(wrapped(50, 1024).load(tmp_path / "many")) == pytest.approx(50, abs=1)
    assert calls_per_step(trained().load(tmp_path / "few")) == pytest.approx(1, abs=0.1)
