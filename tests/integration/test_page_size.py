"""The page of a large run stays small enough to be mailed and opened."""

from pathlib import Path

from tests.benchmarks.page_size import TARGETS_MB, page_of
from tests.benchmarks.performance_scale import Job


def test_page_of_64_ranks_keeps_its_size(tmp_path: Path) -> None:
    page = page_of(Job(ranks=64, steps=60), tmp_path)

    assert page.stat().st_size <= TARGETS_MB[64] * 1e6
    assert b'class="chart"' in page.read_bytes()
