"""Distributed samplers whose settings have to agree between ranks, and do not."""

from dataclasses import dataclass
from typing import Any

from distdiag.analyzers.training.samples import Stream, training_streams
from distdiag.analyzers.training.strangers import strangers
from distdiag.run import Run

HAVE_TO_AGREE = ("seed", "epoch", "replicas")
WORDS = {"seed": "seed", "epoch": "epoch", "replicas": "number of shares"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSplit:
    """A setting of samplers of one data set that differs between data-parallel ranks."""

    setting: str
    values: dict[int, int]
    streams: dict[int, Stream]
    step: int


def sampler_splits(run: Run) -> list[SamplerSplit]:
    """Return the first split of each setting, of samplers that divide one shuffled data set."""
    ranks = {rank for pair in strangers(run) for rank in pair}
    by_key: dict[tuple[Any, ...], dict[int, Stream]] = {}
    for rank, streams in training_streams(run).items():
        for stream in streams:
            if rank in ranks and _known(stream, "replicas") is not None and stream.loader["shuffle"] is True:
                by_key.setdefault(stream.key, {})[rank] = stream
    found: dict[str, SamplerSplit] = {}
    for of_ranks in by_key.values():
        for setting in HAVE_TO_AGREE:
            values = {rank: _known(stream, setting) for rank, stream in of_ranks.items()}
            known = {rank: value for rank, value in values.items() if value is not None}
            if len(set(known.values())) > 1 and setting not in found:
                step = min(int(stream.batches["step"].min()) for stream in of_ranks.values() if len(stream.batches))
                found[setting] = SamplerSplit(setting=setting, values=known, streams=of_ranks, step=step)
    return [found[setting] for setting in HAVE_TO_AGREE if setting in found]


def _known(stream: Stream, setting: str) -> int | None:
    value = stream.loader[setting]
    return None if value is None or value != value else int(value)
