"""Samples that come again: drawn with replacement, in another pass, from workers that all give the same."""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Report
from tests.logs import Logs, RankLog

SAMPLES, BATCHES, SIZE = 240, 40, 4
OF_ITERABLES = "_InfiniteConstantSampler"


def took(
    rank: RankLog,
    samples: Sequence[int],
    *,
    sampler: str = "Own",
    workers: int = 0,
    told: bool = True,
    masks: bool = False,
) -> None:
    """Train on samples in batches; their ids are not ``told`` where the data set is iterable.

    With ``masks`` what is digested of each is the same on all ranks: all of it is a mask without gaps.
    """
    rank.add(
        events.Wrapper(wrapper=1, name="DistributedDataParallel", group="0", time_ns=rank.now_ns),
        events.Loader(loader=1, time_ns=rank.now_ns, dataset="Text", sampler=sampler, workers=workers),
    )
    drawn = iter(samples)
    for number in range(BATCHES):
        ids = list(islice(drawn, SIZE))
        contents = [hash((each * (not masks), "content")) & 0xFFFFFFFF for each in ids]
        fact: dict[str, Any] = {"batch": number, "step": rank.step, "loader": 1}
        rank.add(events.Batch(edge="begin", time_ns=rank.now_ns, trained=True, **fact)).sleep(0.001)
        digest: dict[str, Any] = {
            "fields": [hash((*contents, rank.rank * masks)) & 0xFFFFFFFF],
            **({"ids": ids, "contents": contents} if told else {}),
        }
        rank.add(events.Batch(edge="end", time_ns=rank.now_ns, **digest, **fact))
        rank.all_reduce()
        rank.end_step()
    rank.exit()


def report_of(draws: Sequence[Sequence[int]], directory: Path, **options: Any) -> Report:
    logs = Logs(world_size=len(draws))
    for rank, samples in zip(logs, draws, strict=True):
        took(rank, samples, **options)
    return diagnose(logs.load(directory))


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


def test_samples_drawn_with_replacement_are_no_duplicates(tmp_path: Path) -> None:
    draws = [random.Random(rank).choices(range(SAMPLES), k=BATCHES * SIZE) for rank in range(2)]

    assert report_of(draws, tmp_path).findings == ()


def test_equal_masks_of_samples_that_ranks_number_each_for_themselves_are_no_duplicates(tmp_path: Path) -> None:
    assert report_of([list(range(SAMPLES))] * 2, tmp_path / "masks", masks=True).findings == ()
    assert len(report_of([list(range(SAMPLES))] * 2, tmp_path / "samples").findings) == 1


def test_shares_of_one_endless_order_are_no_duplicates(tmp_path: Path) -> None:
    endless = [sample % 101 for turn in range(4) for sample in random.Random(turn).sample(range(101), 101)]

    assert report_of([endless[rank::2] for rank in range(2)], tmp_path).findings == ()


def test_ranks_that_each_go_through_all_of_the_data_are_found(tmp_path: Path) -> None:
    (found,) = report_of([shuffled(rank) for rank in range(2)], tmp_path).findings

    assert (found.name, found.cause) == ("duplicate-samples", "overlap")


def test_the_same_draw_with_replacement_on_all_ranks_is_found(tmp_path: Path) -> None:
    draw = random.Random(0).choices(range(SAMPLES), k=BATCHES * SIZE)

    (found,) = report_of([draw, draw], tmp_path).findings

    assert (found.name, found.cause) == ("duplicate-samples", "same-order")


def test_an_iterable_data_set_is_told_to_divide_itself(tmp_path: Path) -> None:
    (found,) = report_of([range(SAMPLES)] * 2, tmp_path, sampler=OF_ITERABLES, told=False).findings

    assert found.name == "duplicate-samples"
    assert "iterable" in found.summary
    assert "DistributedSampler" not in " ".join(found.action)
    assert found.evidence[0].startswith("40 batches are equal, bit for bit")


@pytest.mark.parametrize("alike", [True, False])
def test_workers_that_all_give_the_same_are_found(tmp_path: Path, alike: bool) -> None:
    def turns(rank: int) -> list[int]:
        batches = [list(range(first, first + SIZE)) for first in range(rank * SAMPLES, (rank + 1) * SAMPLES, SIZE)]
        return [sample for batch in batches for _ in range(2 if alike else 1) for sample in batch]

    findings = report_of([turns(rank) for rank in range(2)], tmp_path, sampler=OF_ITERABLES, workers=2, told=False)

    assert [(each.name, each.cause) for each in findings.findings] == [("duplicate-samples", "same-workers")] * alike
