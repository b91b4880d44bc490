"""Relabelling ranks relabels the verdict, and the order of files changes nothing."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.run import load
from tests.logs import Logs

RANKS = 4
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
STEP = ("train.py:9 main", "train.py:20 step")
SAVE = ("train.py:9 main", "train.py:30 save")

Scenario = Callable[[Logs, Mapping[int, int]], None]


def extra_call(logs: Logs, who: Mapping[int, int]) -> None:
    for role in range(RANKS):
        rank = logs[who[role]]
        rank.all_reduce(STEP)
        if role == 1:
            rank.all_reduce(SAVE)
        for _ in range(3):
            rank.all_reduce(STEP)
        rank.call("barrier" if role != 1 else "all_reduce", STEP, error=TIMED_OUT, seconds=6)


def two_odd_ranks(logs: Logs, who: Mapping[int, int]) -> None:
    for role in range(RANKS):
        rank = logs[who[role]]
        rank.all_reduce(STEP)
        if role in (0, 3):
            rank.all_gather(SAVE, error=TIMED_OUT, seconds=6)
        else:
            rank.all_reduce(STEP, error=TIMED_OUT, seconds=6)


def loader_stuck(logs: Logs, who: Mapping[int, int]) -> None:
    for role in range(RANKS):
        rank = logs[who[role]]
        rank.all_reduce(STEP)
        if role == 2:
            rank.data_loading("data.py:5 read", seconds=20)
        else:
            rank.all_reduce(STEP, error=TIMED_OUT, seconds=6)


def swapped_groups(logs: Logs, who: Mapping[int, int]) -> None:
    for rank in logs:
        rank.group("a", range(RANKS)).group("b", range(RANKS))
    for role in range(RANKS):
        logs[who[role]].all_reduce(STEP, group="a" if role == 3 else "b", error=TIMED_OUT, seconds=6)


def exception(logs: Logs, who: Mapping[int, int]) -> None:
    for role in range(RANKS):
        rank = logs[who[role]]
        rank.all_reduce(STEP)
        if role in (1, 2):
            rank.fault("ValueError", "bad sample", "data.py:7 parse").exit(1)
        else:
            rank.all_reduce(STEP, error="RuntimeError: Connection closed by peer", seconds=0.5)


def circle(logs: Logs, who: Mapping[int, int]) -> None:
    for role in range(RANKS):
        rank = logs[who[role]]
        call = rank.send(who[(role + 1) % RANKS], STEP, pending=True)
        rank.pulses(STEP, seconds=20, waiting=[call])


SCENARIOS: Mapping[Scenario, str] = {
    extra_call: "sequence-divergence",
    two_odd_ranks: "sequence-divergence",
    loader_stuck: "rank-missing",
    swapped_groups: "order-deadlock",
    exception: "rank-died",
    circle: "p2p-deadlock",
}


def verdict(scenario: Scenario, who: Mapping[int, int], order: list[int]) -> Verdict:
    logs = Logs(world_size=RANKS)
    scenario(logs, who)
    with tempfile.TemporaryDirectory() as folder:
        written = logs.write(Path(folder) / "written")
        shuffled = Path(folder) / "shuffled"
        shuffled.mkdir()
        for rank in order:
            os.rename(written / f"rank{rank:05d}.jsonl", shuffled / f"rank{rank:05d}.jsonl")
        return diagnose(load(shuffled)).verdict


def relabelled(found: Verdict, who: Mapping[int, int]) -> Verdict:
    return dataclasses.replace(
        found,
        culprits=tuple(sorted(who[rank] for rank in found.culprits)),
        victims=tuple(sorted(who[rank] for rank in found.victims)),
        sites={
            rank: found.sites[role]
            for role, rank in sorted(who.items(), key=lambda pair: pair[1])
            if role in found.sites
        },
        summary="",
        evidence=(),
        next_steps=(),
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(who=st.permutations(range(RANKS)), order=st.permutations(range(RANKS)))
def test_relabelling_ranks_relabels_the_verdict(scenario: Scenario, who: list[int], order: list[int]) -> None:
    same = {role: role for role in range(RANKS)}
    labels = dict(enumerate(who))

    plain = verdict(scenario, same, list(range(RANKS)))
    changed = verdict(scenario, labels, order)

    assert plain.name == SCENARIOS[scenario]
    assert relabelled(changed, same) == relabelled(plain, labels)
