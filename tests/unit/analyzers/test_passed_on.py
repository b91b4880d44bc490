"""Lateness that is passed on to the rank it comes from."""

import pandas as pd
import pytest

from distdiag.analyzers.performance.waits import passed_on
from distdiag.engine import Engine

MILLISECOND_NS = 1_000_000
STEPS = 40_000
"""So many that the database goes through the rows in several parts."""
COLUMNS = ("rank", "step", "call", "group", "seq", "begun_ns", "last_rank", "waiting_ns")


def two_equal_waits(step: int) -> list[tuple[int, ...]]:
    """Rank 2 waits equally long for ranks 0 and 1, in a group with each, and then keeps rank 3 waiting."""
    calls = (
        (0, 1, 10, 20, 0, 0),
        (2, 1, 10, 10, 0, 10),
        (1, 1, 11, 40, 1, 0),
        (2, 2, 11, 30, 1, 10),
        (2, 3, 12, 50, 2, 0),
        (3, 1, 12, 30, 2, 20),
    )
    return [
        (rank, step, 10 * step + call, group, step, (100 * step + at) * MILLISECOND_NS, last, waited * MILLISECOND_NS)
        for rank, call, group, at, last, waited in calls
    ]


@pytest.mark.parametrize("seed", range(3))
def test_of_equal_waits_the_first_is_the_source_whatever_the_order_of_rows(seed: int) -> None:
    rows = pd.DataFrame([row for step in range(STEPS) for row in two_equal_waits(step)], columns=COLUMNS)
    engine = Engine()

    moved = passed_on(engine, engine.memory(rows.sample(frac=1, random_state=seed, ignore_index=True)), 200_000.0)

    assert moved.to_dict("records") == [{"last": 2, "source": 0, "waiting_ns": STEPS * 20 * MILLISECOND_NS}]
