"""Members of large groups are written in short: each of thousands of ranks writes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdiag import events
from distdiag.events import folded, unfolded
from tests.logs import MONOTONIC_NS, Logs


@given(st.lists(st.integers(0, 100_000), max_size=50))
def test_ranks_in_short_are_the_same_ranks_in_the_same_order(ranks: list[int]) -> None:
    assert list(unfolded(folded(ranks))) == ranks


@pytest.mark.parametrize("text", ["x", "1-", "-1", "0-999999999", "1,,2", "0-9999999,0-9999999"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no list of ranks"):
        unfolded(text)


def group(ranks: str) -> events.Group:
    return events.Group(group="0", ranks=ranks, backend="nccl", time_ns=MONOTONIC_NS)


def test_groups_in_short_and_at_length_are_one_group(tmp_path: Path) -> None:
    logs = Logs(3, default_group=False)
    logs[0].group("0", range(3))
    for number in (1, 2):
        logs[number].add(group("0-2"))
    for rank in logs:
        rank.all_reduce()

    run = logs.load(tmp_path)

    assert run.calls["group_key"].unique().tolist() == ["0[0-2]"]
    assert set(run.groups["ranks"]) == {(0, 1, 2)}


def test_a_group_that_makes_no_sense_is_a_damaged_line(tmp_path: Path) -> None:
    logs = Logs(2)
    logs[0].add(group("0-999999999"))
    for rank in logs:
        rank.all_reduce()

    run = logs.load(tmp_path)

    assert run.quality.undecodable_lines == {"rank00000.jsonl": 1}
