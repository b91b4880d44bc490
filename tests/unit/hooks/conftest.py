"""What most tests of hooks begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recordings import Recording, lonely_world, pretended_world, recording


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recording]:
    """Record this process as rank 1 of 4, whose peers are pretended."""
    with recording(tmp_path / "logs") as made, pretended_world():
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Recording]:
    """Record this process as the only rank of a gloo group, whose calls do end."""
    with recording(tmp_path / "logs") as made, lonely_world():
        yield made
