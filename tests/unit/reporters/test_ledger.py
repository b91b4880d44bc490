"""Where the steps of a slow run go, as columns."""

import dataclasses
from typing import Any

from distdiag.reporters._lines import plain
from distdiag.reporters._performance import PARTS, ledger_lines
from distdiag.reporters.text import compose
from tests.reports import STUCK, stuck


def row(rank: int, own: float, **changes: Any) -> dict[str, Any]:
    ledger = {f"{part}_seconds": 0.0 for part in PARTS} | {"forward_seconds": own, "communication_seconds": 0.1 - own}
    usual = {
        "rank": rank,
        "step_seconds": 0.1,
        "own_step_seconds": own,
        "ledger": ledger,
        "communication_share": 0.05,
        "wait_share": 0.95 - 10 * own,
        "waits_caused_seconds": 0.0,
    }
    return {**usual, **changes}


def test_the_culprit_comes_first_and_only_parts_that_matter_are_shown() -> None:
    rows = [row(0, 0.02), row(1, 0.02), row(2, 0.09, waits_caused_seconds=2.8)]

    heading, first, *others = [plain(line).split() for line in ledger_lines(rows, (2,), 100)]

    assert heading[:6] == ["rank", "step", "own", "forward", "transfer", "waits"]
    assert first == ["2", "100", "ms", "90", "ms", "90", "ms", "5", "ms", "5", "ms", "2.8", "s"]
    assert [line[0] for line in others] == ["0", "1"]


def test_many_ranks_are_cut_to_those_that_others_wait_for_most() -> None:
    rows = [row(rank, 0.02, waits_caused_seconds=float(rank)) for rank in range(40)]

    lines = [plain(line).split() for line in ledger_lines(rows, (3,), 100)]

    assert [line[0] for line in lines[1:4]] == ["3", "39", "38"]
    assert lines[-1][:4] == ["and", "28", "more", "ranks:"]


def test_ranks_of_which_no_share_is_known_have_no_table() -> None:
    assert ledger_lines([row(0, 0.02, ledger=None)], (), 100) == []


def test_slow_runs_show_it_instead_of_where_ranks_ended() -> None:
    verdict = dataclasses.replace(STUCK, code="DD201", name="compute-straggler")
    report = stuck(verdict=verdict, performance={"ranks": [row(0, 0.02), row(5, 0.09)]})

    text = "\n".join(plain(line) for line in compose(report, width=100, height=60))

    assert "is waited for" in text
    assert "where it is" not in text
