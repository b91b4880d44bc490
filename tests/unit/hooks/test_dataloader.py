"""Batches that a data loader is asked for, and those that come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.utils.data import DataLoader, Dataset, IterableDataset

import distdiag
from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from tests.ranks import line_of
from tests.recordings import Recording, read_logs, recording

dist: Any = torch.distributed


class Numbers(Dataset[int]):
    """A few numbers; one of them cannot be read."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise OSError("cannot read")
        return index


class Stream(IterableDataset[int]):
    """Numbers that can only be iterated over."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def batches(recorded: Recording) -> list[tuple[int, int, str, bool]]:
    return [(each.loader, each.batch, each.edge, each.exhausted) for each in recorded.log.of(events.Batch)]


def epoch(loader: int, *, count: int) -> list[tuple[int, int, str, bool]]:
    """Return the records of an epoch: each batch begins and ends, and the last one asked for is not there."""
    given = [(loader, batch, edge, False) for batch in range(count) for edge in ("begin", "end")]
    return [*given, (loader, count, "begin", False), (loader, count, "end", True)]


def test_each_batch_begins_and_ends_until_there_is_none_left(recorded: Recording) -> None:
    loader: Any = DataLoader(Numbers(), batch_size=2)

    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]

    assert batches(recorded) == epoch(1, count=2)


def test_each_epoch_is_an_iterator_of_its_own(recorded: Recording) -> None:
    loader: Any = DataLoader(Numbers(), batch_size=2)

    for _ in range(2):
        list(loader)

    assert batches(recorded) == epoch(1, count=2) + epoch(2, count=2)


def test_loader_of_a_stream_is_recorded(recorded: Recording) -> None:
    loader: Any = DataLoader(Stream(), batch_size=None)

    assert list(loader) == [0, 1, 2]

    assert batches(recorded) == epoch(1, count=3)


def test_waiting_for_a_batch_is_the_data_phase_at_its_line(recorded: Recording) -> None:
    loader: Any = DataLoader(Numbers(), batch_size=4)

    def load() -> None:
        for _ in loader:  # LINE load
            dist.barrier()
        dist.barrier()

    load()

    assert [each.call.phase for each in recorded.log.issued("barrier")] == ["forward", ""]
    begun = recorded.log.of(events.Batch)[0]
    assert begun.path is not None
    assert recorded.log.paths()[begun.path][-1] == f"{line_of(__file__, 'load')} load"


def test_batch_that_cannot_be_read_ends_without_being_the_last(recorded: Recording) -> None:
    loader: Any = DataLoader(Numbers(broken=1), batch_size=1)

    with pytest.raises(OSError, match="cannot read"):
        list(loader)

    assert batches(recorded)[-1] == (1, 1, "end", False)


def test_time_for_data_is_part_of_the_step(recorded: Recording) -> None:
    loader: Any = DataLoader(Numbers(), batch_size=2)

    for _ in loader:
        distdiag.step()

    steps = recorded.log.of(events.Step)
    loaded = recorded.log.of(events.Batch)
    for step, begun, ended in zip(steps, loaded[::2], loaded[1::2], strict=False):
        assert step.data_ns is not None
        assert step.data_ns >= ended.time_ns - begun.time_ns
    assert [each.step for each in loaded] == [0, 0, 1, 1, 2, 2]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_no_ranks_and_write_nothing(persistent: bool, recorded: Recording) -> None:
    loader: Any = DataLoader(
        Numbers(), batch_size=2, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )

    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]

    second = 1 if persistent else 2
    assert batches(recorded) == epoch(1, count=2) + epoch(second, count=2)
    assert list(read_logs(recorded.directory)) == ["rank00001"]
    assert recorded.log.of(events.Fault) == []


def test_broken_recording_does_not_keep_a_batch_from_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise OSError("no more room")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    with recording(tmp_path) as made:
        monkeypatch.setattr(type(made.recorder), "write", broken)
        loader: Any = DataLoader(Numbers(), batch_size=4)

        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]]
