"""Samples that ranks got from their data loaders, and what two ranks have in common."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from distdiag.run import Run
from distdiag.thinning import is_kept

FEWEST_BATCHES = 10
"""Of fewer batches equal ones may be chance, or a rehearsal."""
OF_ITERABLES = "_InfiniteConstantSampler"
"""What a loader has in place of a sampler where its data set is iterable."""
TRAINED_SHARE = 0.5
"""Loaders whose batches are mostly evaluated on are often the same on all ranks, rightly."""
MOST_IDS = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """What one rank got from one loader in one epoch."""

    rank: int
    loader: Mapping[Any, Any]
    """Fields of the loader's record."""
    epoch: int
    """How many times the rank had begun to go through a data set like this before."""
    batches: pd.DataFrame
    """Those that came, in order."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what is the same for streams that can be compared."""
        return self.loader["dataset"], self.loader["length"], self.epoch

    @cached_property
    def thinned(self) -> int:
        """Return the power at which all its ids are kept."""
        return int(self.batches["thinned"].max())

    def samples(self, power: int) -> set[tuple[int, int]]:
        """Return id and digest of the samples that are kept at a power, until the rank has one of them again.

        From there on it draws with replacement, or goes through its data once more, and so may any other rank. Digests
        that hardly differ, as those of masks of full rows, tell no samples apart: then there are none.
        """
        found: set[tuple[int, int]] = set()
        for ids, contents in zip(self.batches["ids"], self.batches["contents"], strict=True):
            batch = [each for each in zip(ids, contents, strict=False) if is_kept(each[0], power)]
            if not found.isdisjoint(batch):
                break
            found.update(batch)
        return found if 2 * len({digest for _, digest in found}) > len(found) else set()

    @property
    def is_iterable(self) -> bool:
        """Return whether the data set gives its samples by itself: no sampler chooses them."""
        return str(self.loader["sampler"]) == OF_ITERABLES

    def rounds(self) -> tuple[int, int]:
        """Return in how many rounds all workers of the loader gave the same batch, and how many rounds there were."""
        workers = int(self.loader["workers"])
        fields = list(self.batches["fields"])
        count = len(fields) // workers if workers > 1 else 0
        if count < FEWEST_BATCHES:
            return 0, count
        turns = [fields[worker : count * workers : workers] for worker in range(workers)]
        return min(_equal_places(turns[0], turn) for turn in turns[1:]), count


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What two ranks have in common in one epoch."""

    ranks: tuple[int, int]
    streams: tuple[Stream, Stream]
    same_order: int
    """Batches that are equal at the same place."""
    compared: int
    kept: int
    """Samples that both had, of the ids that were kept."""
    shared: int
    """Samples that both had, as many as can be told from that."""
    share: float
    """Of the samples of the rank that had fewer."""
    step: int


def training_streams(run: Run) -> dict[int, list[Stream]]:
    """Return the streams of each rank that were trained on."""
    loaders = run.loaders.sort_values(["rank", "time_ns"])
    batches = run.batches
    begun = batches[batches["edge"] == "begin"]
    came = batches[(batches["edge"] == "end") & ~batches["exhausted"]].sort_values("time_ns", kind="stable")
    found: dict[int, list[Stream]] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for rank, rows in loaders.groupby("rank"):
        of_rank = rows.to_dict("records")
        mine, begins = came[came["rank"] == rank], begun[begun["rank"] == rank]
        for loader, (since, until) in zip(of_rank, _spans(of_rank), strict=True):
            key = rank, loader["dataset"], loader["length"]
            if not _is_trained_on(_within(begins, loader, since, until)):
                continue
            epoch = seen[key] = seen.get(key, -1) + 1
            stream = Stream(
                rank=int(str(rank)), loader=loader, epoch=epoch, batches=_within(mine, loader, since, until)
            )
            found.setdefault(stream.rank, []).append(stream)
    return found


def overlap(first: Stream, second: Stream) -> Overlap | None:
    """Return what two streams have in common; None where there is too little to compare."""
    fields = [list(stream.batches["fields"]) for stream in (first, second)]
    compared = min(map(len, fields))
    if compared < FEWEST_BATCHES:
        return None
    power = max(first.thinned, second.thinned)
    samples = [stream.samples(power) for stream in (first, second)]
    fewer = min(map(len, samples))
    both = len(samples[0] & samples[1])
    return Overlap(
        ranks=(first.rank, second.rank),
        streams=(first, second),
        same_order=_equal_places(fields[0][:compared], fields[1][:compared]),
        compared=compared,
        kept=both,
        shared=both << power,
        share=both / fewer if fewer else 0.0,
        step=int(first.batches["step"].min()),
    )


def _equal_places(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> int:
    """Return at how many places a field of both batches is the same, taking the field for which that is most.

    Fields that hardly change, such as masks of full rows, say nothing.
    """
    width = min((len(each) for each in (*first, *second)), default=0)
    counts = [
        sum(a[field] == b[field] for a, b in zip(first, second, strict=True))
        for field in range(width)
        if len({each[field] for each in first}) > len(first) // 2
    ]
    return max(counts, default=0)


def _spans(loaders: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[int, float]]:
    """Yield from when to when each record of a loader holds: an iterator may be used for several epochs."""
    for place, loader in enumerate(loaders):
        later = [each["time_ns"] for each in loaders[place + 1 :] if each["loader"] == loader["loader"]]
        yield int(loader["time_ns"]), float(min(later, default=float("inf")))


def _within(batches: pd.DataFrame, loader: Mapping[Any, Any], since: int, until: float) -> pd.DataFrame:
    times = batches["time_ns"]
    inside: pd.DataFrame = batches[(batches["loader"] == loader["loader"]) & (times >= since) & (times < until)]
    return inside


def _is_trained_on(begun: pd.DataFrame) -> bool:
    later = begun.sort_values("time_ns")["trained"].iloc[1:]
    return len(later) > 0 and float(later.mean()) >= TRAINED_SHARE


def batches_of_step(run: Run, step: int) -> pd.DataFrame:
    """Return what came of data loaders in a step: a row per rank and batch."""
    rows = run.batches[(run.batches["edge"] == "end") & (run.batches["step"] == step) & ~run.batches["exhausted"]]
    return rows.sort_values(["rank", "loader", "batch"])


def batches_in_words(run: Run, ranks: Iterable[int], step: int) -> tuple[str, ...]:
    """Return which batches some ranks had in a step."""
    rows = batches_of_step(run, step)
    return tuple(
        f"rank {row['rank']} had batch {row['batch']} of its loader{_samples(row)} in step {step}"
        for row in rows[rows["rank"].isin(set(ranks))].to_dict("records")
    )


def _samples(row: Mapping[Any, Any]) -> str:
    ids = row["ids"]
    if not isinstance(ids, tuple) or not ids:
        return ""
    more = ", …" if len(ids) > MOST_IDS or row["thinned"] else ""
    return f" (samples {', '.join(map(str, ids[:MOST_IDS]))}{more})"
