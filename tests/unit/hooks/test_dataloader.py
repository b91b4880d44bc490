"""Batches that a data loader is asked for, and those that come."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import distdiag
from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks.dataloader import VALUES_OF_SAMPLE, _digest, _digests_of_rows
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


# ---- what a batch is ------------------------------------------------------------------------------------------------
class Rows(Dataset[dict[str, torch.Tensor]]):
    """Sentences of token ids; sample n has n tokens, and the rest is padding."""

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = (torch.arange(8) < index).long()
        return {"input_ids": mask * (100 + index), "attention_mask": mask}


def ended(recorded: Recording) -> list[events.Batch]:
    return [each for each in recorded.log.of(events.Batch) if each.edge == "end" and not each.exhausted]


def test_batch_has_the_ids_of_its_samples_and_counts_of_its_tokens(recorded: Recording) -> None:
    loader: Any = DataLoader(Rows(), batch_size=2, sampler=[3, 1, 0, 2])

    list(loader)

    first, second = ended(recorded)
    assert (first.ids, second.ids) == ([3, 1], [0, 2])
    assert (first.samples, first.tokens, first.positions, first.tokens_squared) == (2, 4, 16, 10)


def test_digests_tell_samples_apart_and_agree_on_equal_ones(recorded: Recording) -> None:
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):
        list(DataLoader(Rows(), batch_size=2, sampler=order))

    contents = [dict(zip(each.ids, each.contents, strict=True)) for each in ended(recorded)]
    assert contents[0] | contents[1] == contents[2] | contents[3]
    assert len(set((contents[0] | contents[1]).values())) == 4
    fields = [each.fields for each in ended(recorded)]
    assert fields[1] == fields[3]
    assert fields[0] != fields[2]


def test_no_value_of_a_batch_is_written(recorded: Recording) -> None:
    secret = 987654321987
    samples: Any = [torch.tensor([secret, secret])]
    loader: Any = DataLoader(samples, batch_size=1)

    list(loader)

    assert str(secret) not in "".join(file.read_text() for file in recorded.directory.glob("*.jsonl"))


def test_stream_without_ids_has_digests(recorded: Recording) -> None:
    loader: Any = DataLoader(Stream(), batch_size=2)

    list(loader)

    assert [(each.ids, each.samples) for each in ended(recorded)] == [([], 2), ([], 1)]
    assert len({each.fields[0] for each in ended(recorded)}) == 2


def test_large_batches_keep_the_same_ids_on_every_rank(recorded: Recording) -> None:
    for order in (range(1000), range(999, -1, -1)):
        list(DataLoader(Rows(1000), batch_size=500, sampler=list(order)))

    batches = ended(recorded)
    kept = [{sample for batch in batches[i : i + 2] for sample in batch.ids} for i in (0, 2)]
    assert kept[0] == kept[1]
    assert 20 < len(kept[0]) < 100
    assert {batch.thinned for batch in batches} == {5}
    assert all(len(batch.ids) == len(batch.contents) for batch in batches)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_ids_belong_to_the_batch_that_came_though_workers_are_ahead(persistent: bool, recorded: Recording) -> None:
    loader: Any = DataLoader(
        Rows(8), batch_size=2, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    for _ in range(2):
        for batch in loader:
            assert ended(recorded)[-1].tokens == int(batch["attention_mask"].sum())

    assert [each.ids for each in ended(recorded)] == 2 * [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_each_epoch_tells_how_its_sampler_was_set(recorded: Recording) -> None:
    sampler: Any = DistributedSampler(Rows(8), num_replicas=2, rank=1, seed=7)
    loader: Any = DataLoader(Rows(8), batch_size=2, sampler=sampler)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(loader)

    told = recorded.log.of(events.Loader)
    assert [(each.loader, each.epoch) for each in told] == [(1, 0), (2, 1)]
    assert (told[0].sampler, told[0].seed, told[0].shuffle) == ("DistributedSampler", 7, True)
    assert (told[0].replicas, told[0].replica, told[0].length, told[0].batch_size) == (2, 1, 8, 2)
    assert told[0].dataset == "Rows"


def test_batch_says_whether_the_one_before_was_trained_on(recorded: Recording) -> None:
    weight = torch.ones(1, requires_grad=True)
    loader: Any = DataLoader(Numbers(), batch_size=1)

    for number, _ in enumerate(loader):
        if number < 2:
            torch.autograd.backward(weight.sum())

    begun = [each.trained for each in recorded.log.of(events.Batch) if each.edge == "begin"]
    assert begun[1:] == [True, True, False, False]


@pytest.mark.parametrize("places", [range(6), (0, 2, 5), ()])
@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(6 * 40).reshape(6, 40),
        torch.arange(6 * 3).reshape(6, 3),
        torch.rand(6, 3, 8, 8),
        torch.rand(6, 3, 8, 8).to(memory_format=torch.channels_last),
        torch.rand(6, 12).to(torch.bfloat16),
        torch.zeros(6, 0),
    ],
    ids=lambda rows: f"{tuple(rows.shape)} {rows.stride()}",
)
def test_digests_of_rows_are_those_of_each_row_alone(rows: torch.Tensor, places: Sequence[int]) -> None:
    assert _digests_of_rows(rows, places) == [_digest(rows[place], VALUES_OF_SAMPLE) for place in places]
