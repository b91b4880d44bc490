"""The table of profiler traces in the report for people."""

from typing import Any

from distdiag.reporters._lines import plain
from distdiag.reporters._performance import LEGEND, profile_lines
from distdiag.reporters.text import compose
from tests.reports import healthy

WIDTH = 100


def row(rank: int, **changes: Any) -> dict[str, Any]:
    shares = {"idle": 53.56, "compute": 17.71, "non_compute": 28.73, "exposed": 28.71, "overlap": 11.81}
    told: dict[str, Any] = {f"{name}_pct": share for name, share in shares.items()}
    told |= {"rank": rank, "file": f"trace_rank-{rank}.json", "device": 0, "window_us": 600_058.0}
    told |= {"idle_waits": {"host_wait_pct": 56.7, "kernel_wait_pct": 0.5, "other_wait_pct": 42.8}}
    return told | {"waiting": None, "unknown": {}, "notes": []} | changes


def lines(*rows: dict[str, Any]) -> list[str]:
    return [plain(line) for line in profile_lines(rows, WIDTH)]


def test_shares_stand_in_one_row_for_each_rank() -> None:
    shown = lines(row(0), row(1, idle_pct=1.0))

    assert shown[0] == "Profiler traces"
    assert " ".join(shown[2].split()) == "0 600 ms 53.6 % 17.7 % 28.7 % 11.8 % 28.7 % the host 57 %"
    assert shown[3].split()[:4] == ["1", "600", "ms", "1.0"]


def test_a_report_without_traces_has_no_such_table() -> None:
    assert lines() == []
    assert not any("Profiler" in plain(line) for line in compose(healthy(), width=WIDTH, height=40))


def test_a_healthy_report_shows_the_table_below_its_three_lines() -> None:
    report = healthy(performance={"profiler": [row(0)]})

    shown = [plain(line) for line in compose(report, width=WIDTH, height=40)]

    assert shown[0].startswith("HEALTHY")
    assert "Profiler traces" in shown


def test_what_is_not_told_has_its_reason() -> None:
    nothing = dict.fromkeys(("idle_pct", "compute_pct", "non_compute_pct", "overlap_pct", "exposed_pct"))
    waits = {"idle_waits": dict.fromkeys(("host_wait_pct", "kernel_wait_pct", "other_wait_pct"))}
    rows = [
        row(
            rank,
            **nothing,
            **waits,
            window_us=0.0,
            unknown={"idle_pct": "no device activity"},
            notes=["no device activity"],
        )
        for rank in (3, 4)
    ]

    shown = lines(*rows)

    assert shown == ["Profiler traces", "  ranks 3-4: no shares: no device activity"]


def test_damage_of_a_trace_is_said() -> None:
    note = "trace_rank-1.json is truncated (its text ends early): its 12 complete events were read"

    assert f"  rank 1: {note}" in lines(row(0), row(1, notes=[note]))


def test_a_rank_that_the_others_wait_for_has_its_sentence() -> None:
    waiting = {"ranks": [0, 1, 2], "collectives": 5, "came_last_pct": 60.0, "waits_caused_us": 54_803.0}

    assert "  rank 1 came last in 60 % of 5 collectives; ranks 0,2 waited 55 ms for it" in lines(
        row(0, waiting=waiting | {"came_last_pct": 20.0, "waits_caused_us": 100.0}), row(1, waiting=waiting)
    )


def test_a_rank_that_is_last_now_and_then_has_none() -> None:
    waiting = {"ranks": [0, 1], "collectives": 5, "came_last_pct": 40.0, "waits_caused_us": 54_803.0}

    assert not any("came last" in line for line in lines(row(0, waiting=waiting)))


def test_of_many_ranks_the_first_ones_are_shown_and_the_others_counted() -> None:
    shown = lines(*(row(rank) for rank in range(100)))

    assert "  and 88 more: --format json has them all" in shown
    assert len(shown) < 20
    assert LEGEND.partition(":")[0] in " ".join(shown)
