"""The block of the report that says what a step could take."""

from typing import Any

from distdiag.reporters._lines import plain
from distdiag.reporters._performance import what_if_line, what_if_lines

WIDTH = 96


def told(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "source": "operations",
        "slowdown": 1.25,
        "waste": 0.2,
        "step_seconds": 2.5,
        "ideal_step_seconds": 2.0,
        "launch_delay": 1.02,
        "steps": 10,
        "stages": 2,
        "data_parallel_ranks": 2,
        "devices": 64,
        "gpu_hours": 0.444,
        "gpu_hours_wasted": 0.0889,
        "by_stage": {0: 1.0, 1: 1.25},
        "by_data_parallel_rank": {0: 1.2, 1: 1.2},
        "worker_slowdowns": [[1.0, 1.0], [1.2, 1.2]],
        "fixing": [
            {"what": "stage 1", "ranks": [2, 3], "step_seconds": 2.04, "gain": 0.184, "share": 0.92},
            {"what": "optimizer", "ranks": [], "step_seconds": 2.499, "gain": 0.0004, "share": 0.002},
        ],
        "left_out": [],
    }
    return {**content, **changes}


def text(content: dict[str, Any] | None) -> str:
    return "\n".join(plain(line) for line in what_if_lines(content, WIDTH))


def test_nothing_simulated_gives_no_line() -> None:
    assert what_if_lines(None, WIDTH) == []
    assert what_if_line(None) == ""


def test_block_tells_what_is_lost_what_mending_gives_and_who() -> None:
    assert text(told()).split("\n\n") == [
        "What if        a step takes 2.5 s; if all operations of a kind took the same time, it would\n"
        "                 take 2 s (1.25x)\n"
        "               0.089 of the 0.44 GPU-hours of these 10 steps on 64 devices are lost by that\n"
        "               beside it, 2.0% pass between operations, where the host launches them late",
        "  at its usual pace  a step takes  gain   ranks\n  stage 1            2.04 s        18.4%  2-3",
        "  slowdown of each worker: its stage or its data-parallel rank alone, the lesser\n"
        "  stage  dp 0  dp 1\n"
        "  0      1.00  1.00\n"
        "  1      1.20  1.20",
    ]


def test_a_job_that_loses_nothing_is_one_sentence() -> None:
    content = told(slowdown=1.0, waste=0.0, ideal_step_seconds=2.5, launch_delay=1.0, fixing=[])

    assert text(content) == "What if        " + what_if_line(content)
    assert what_if_line(content) == "a step takes 2.5 s, as long as if all operations of a kind took the same time"


def test_of_many_data_parallel_ranks_the_slowest_are_shown() -> None:
    rows = [[1.0] * 200, [1.0] * 137 + [1.4] + [1.0] * 62]

    shown = text(
        told(data_parallel_ranks=200, by_data_parallel_rank=dict.fromkeys(range(200), 1.0), worker_slowdowns=rows)
    )

    assert "the 11 slowest columns of 200" in " ".join(shown.split())
    assert "dp 137" in shown
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_operations_that_were_left_out_are_named() -> None:
    assert "operations that were left out: coffee-break" in text(told(left_out=["coffee-break"]))
