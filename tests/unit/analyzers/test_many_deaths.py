"""Deaths of very many ranks at once: looked up together, not frame by frame for each of them."""

import time
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.importers import load

RANKS = 1200
ALLOWED_SECONDS = 2.5
"""Processor time; a quarter of a second was measured here."""


def test_a_thousand_ranks_that_died_alike_are_told_of_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"srun: error: node-3: tasks 0-{RANKS - 1}: Segmentation fault\n")
    run = load(tmp_path)

    began = time.thread_time()
    verdict = diagnose(run).verdict

    assert time.thread_time() - began < ALLOWED_SECONDS
    assert (verdict.name, verdict.cause) == ("rank-died", "aborted")
    assert len(run.ranks) == RANKS
