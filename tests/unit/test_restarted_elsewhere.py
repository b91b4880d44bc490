"""Ranks that were restarted on another host, whose clock differs by more than the restart took."""

from pathlib import Path

import pytest

from distdiag.run import load
from tests.logs import SECOND_NS, Logs

RUN = "job@host:29500"


def moved(tmp_path: Path, ahead: float) -> Path:
    """Write the logs of two ranks that changed hosts at a restart; the clock of one of these is ahead."""
    for attempt in (0, 1):
        logs = Logs(world_size=2, run=RUN, attempt=attempt)
        for rank in logs:
            host = (rank.rank + attempt) % 2
            rank.header.host = f"node{host}"
            rank.header.wall_ns += round(SECOND_NS * (100 * attempt + (ahead if host else 0)))
            rank.header.pid += 1000 * attempt
            for _ in range(3):
                rank.sleep(10.0).all_reduce()
        logs.write(tmp_path)
    return tmp_path


@pytest.mark.parametrize("ahead", [-300.0, 0.0, 300.0])
def test_the_newer_attempt_of_each_rank_is_read_whatever_the_clocks_say(tmp_path: Path, ahead: float) -> None:
    run = load(moved(tmp_path, ahead))

    assert run.ranks == (0, 1)
    assert set(run.headers["attempt"]) == {1}
    assert run.quality.older_attempts == (0,)
    assert not run.quality.doubled_ranks
