"""Damaged output gives records or nothing, never an error; ``tests/benchmarks/fuzz_importers.py`` tries far more."""

from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import load, stacks, stderr
from tests.mutations import corpus, damaged

OUTPUTS = 800
"""Of forty lines each; a few seconds."""
VERDICTS = 12
SEED_OF_VERDICTS = 500_000


def test_what_is_damaged_is_understood_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("\n".join(corpus()))

    ranks = {imported.rank for imported in stderr.read([file])}

    assert {0, 1, 2, 3, 4, 5} <= ranks


def test_damaged_output_is_read_without_an_error(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    for seed in range(OUTPUTS):
        file.write_bytes(damaged(seed))
        try:
            imported = [*stderr.read([file]), *stacks.read([file])]
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        for each in imported:
            for record in each.events:
                assert events.decode(events.encode(record)) == record


@pytest.mark.parametrize("seed", range(SEED_OF_VERDICTS, SEED_OF_VERDICTS + VERDICTS))
def test_damaged_output_gives_a_verdict_or_a_hint(seed: int, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(damaged(seed))

    try:
        said = diagnose(load(tmp_path)).verdict.name
    except DistdiagError as error:
        said = error.hint

    assert said
