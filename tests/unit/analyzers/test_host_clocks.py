"""However wrong the clocks of hosts are, a stuck run is told as it is, or it is said that it cannot be told."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests import skews
from tests.logs import Logs
from tests.skews import Skew, set_clocks, stepped

Stop = Callable[[Logs], None]
INSUFFICIENT = "insufficient-evidence"
MINUTE = 60.0
FAST, SLOW = 50.0, -50.0
"""Parts per million: what clocks without a time service are wrong by."""

TOLD: dict[Stop, tuple[str, tuple[int, ...]]] = {
    skews.in_the_data_loader: ("rank-missing", (1,)),
    skews.too_late: ("late-rank", (1,)),
    skews.last_rank_too_late: ("late-rank", (3,)),
    skews.one_call_more: ("sequence-divergence", (1,)),
    skews.all_receive: ("p2p-deadlock", (0, 1, 2, 3)),
    skews.killed: ("rank-died", (1,)),
    skews.out_of_memory: ("out-of-memory", (3,)),
    skews.raised: ("rank-died", (1,)),
    skews.frozen: ("rank-missing", (1,)),
    skews.all_in_one: ("transport-stuck", ()),
    skews.some_first: ("transport-stuck", ()),
    skews.chain_of_messages: ("late-rank", (3,)),
    skews.over_two_groups: ("late-rank", (3,)),
    skews.group_never_made: ("rank-missing", (1,)),
    skews.group_asked_for_too_late: ("rank-missing", (3,)),
    skews.group_that_all_ask_for: ("group-creation-stuck", ()),
    skews.left_early: ("rank-missing", (1,)),
}
TWO_HOSTS: list[dict[str, Skew]] = [
    {"node1": (20 * MINUTE, FAST)},
    {"node0": (0.5, SLOW), "node1": (-20 * MINUTE, FAST)},
    {"node1": (-3 * MINUTE, 0.0)},
]
FOUR_HOSTS: list[dict[str, Skew]] = [
    {"node0": (3 * MINUTE, FAST), "node1": (-0.5, 0.0), "node2": (-20 * MINUTE, SLOW), "node3": (20 * MINUTE, 0.0)},
    {"node0": (-20 * MINUTE, 0.0), "node3": (-3 * MINUTE, FAST)},
]


def verdict(logs: Logs, directory: Path) -> Verdict:
    return diagnose(logs.load(directory)).verdict


def stopped(stop: Stop, *, hosts: int, steps: int) -> Logs:
    logs = stepped(4, ranks_per_host=4 // hosts, steps=steps)
    stop(logs)
    return logs


def cases(clocks: list[dict[str, Skew]]) -> list[tuple[Stop, dict[str, Skew]]]:
    """Return each way to stop with the clocks of one case, in turn."""
    return [(stop, clocks[number % len(clocks)]) for number, stop in enumerate(TOLD)]


def figures(text: str) -> list[float]:
    """Return the durations that a text tells, in seconds."""
    return [float(value) for value in re.findall(r"(\d+(?:\.\d+)?) s\b", text)]


@pytest.mark.parametrize(("stop", "clocks"), cases(TWO_HOSTS))
def test_hosts_that_shared_collectives_need_no_right_clocks(
    tmp_path: Path, stop: Stop, clocks: dict[str, Skew]
) -> None:
    steps = 2 if len(stop.__name__) % 2 else 12  # less than a median needs, and enough for one

    found = verdict(set_clocks(stopped(stop, hosts=2, steps=steps), clocks), tmp_path)

    assert (found.name, found.culprits) == TOLD[stop]


@pytest.mark.parametrize(("stop", "clocks"), cases(FOUR_HOSTS)[1::2] + cases(FOUR_HOSTS[1:])[::6])
def test_four_clocks_are_made_one(tmp_path: Path, stop: Stop, clocks: dict[str, Skew]) -> None:
    found = verdict(set_clocks(stopped(stop, hosts=4, steps=5), clocks), tmp_path)

    assert (found.name, found.culprits) == TOLD[stop]


@pytest.mark.parametrize(("stop", "clocks"), cases(TWO_HOSTS))
def test_hosts_that_shared_nothing_accuse_nobody_wrongly(tmp_path: Path, stop: Stop, clocks: dict[str, Skew]) -> None:
    found = verdict(set_clocks(stopped(stop, hosts=2, steps=0), clocks), tmp_path)

    assert (found.name, found.culprits) in (TOLD[stop], (INSUFFICIENT, ()))
    if found.name == INSUFFICIENT:
        assert "nothing compares the clocks of their hosts" in found.summary


@pytest.mark.parametrize("stop", [skews.all_in_one, skews.in_the_data_loader, skews.killed])
def test_clocks_that_nothing_compares_are_no_reason_to_know_nothing(tmp_path: Path, stop: Stop) -> None:
    found = verdict(stopped(stop, hosts=2, steps=0), tmp_path)

    assert (found.name, found.culprits) == TOLD[stop]
    assert "when the others gave up" not in found.summary


@pytest.mark.parametrize("stop", [skews.too_late, skews.all_in_one, skews.some_first, skews.in_the_data_loader])
def test_durations_are_of_one_clock(tmp_path: Path, stop: Stop) -> None:
    right = verdict(stopped(stop, hosts=2, steps=2), tmp_path / "right")
    wrong = verdict(set_clocks(stopped(stop, hosts=2, steps=2), {"node1": (-20 * MINUTE, 0.0)}), tmp_path / "wrong")

    assert figures(wrong.summary) == pytest.approx(figures(right.summary), abs=0.2)
    assert figures(" ".join(wrong.evidence)) == pytest.approx(figures(" ".join(right.evidence)), abs=0.2)
