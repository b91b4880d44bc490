"""Damaged dumps give records or nothing, never an error; ``tests/benchmarks/fuzz_importers.py`` tries far more."""

from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import flight_recorder, load
from tests.dump_mutations import damaged

DUMPS = 500
"""Of four files each; a few seconds."""
VERDICTS = 20
SEED_OF_VERDICTS = 500_000


def written(directory: Path, files: dict[str, bytes]) -> list[Path]:
    for file in directory.iterdir():
        file.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return [directory / name for name in files]


def test_damaged_dumps_are_read_without_an_error_and_nothing_in_them_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    directory = tmp_path / "dumps"
    directory.mkdir()
    for seed in range(DUMPS):
        try:
            imported = list(flight_recorder.read(written(directory, damaged(seed, str(marker)))))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        for each in imported:
            for line in map(events.encode, each.records()):
                assert events.encode(events.decode(line)) == line

    assert not marker.exists()


@pytest.mark.parametrize("seed", range(SEED_OF_VERDICTS, SEED_OF_VERDICTS + VERDICTS))
def test_damaged_dumps_give_a_verdict_or_a_hint(seed: int, tmp_path: Path) -> None:
    written(tmp_path, damaged(seed))

    try:
        said = diagnose(load(tmp_path)).verdict.name
    except DistdiagError as error:
        said = error.hint

    assert said
