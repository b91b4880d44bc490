"""Which ranks have to see different samples, and the settings of their samplers that have to agree, and do not.

Ranks that see different samples are peers in data parallelism that share nothing else. Tensor-, context- and
pipeline-parallel peers rightly work on the same ones. What they share shows in calls between them that no averaging of
gradients makes, and then nothing is said about them."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from distdiag.analyzers.training.peers import data_parallel
from distdiag.analyzers.training.samples import Stream, training_streams
from distdiag.run import Run

EXCHANGES = (
    "all_to_all",
    "all_to_all_single",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
MOST_RANKS = 64
"""Of larger groups the first ranks are looked at: what goes wrong with sampling does so on all."""
Pair = tuple[int, int]
HAVE_TO_AGREE = ("seed", "epoch", "replicas")
WORDS = {"seed": "seed", "epoch": "epoch", "replicas": "number of shares"}


def strangers(run: Run) -> list[Pair]:
    """Return the pairs of ranks whose samples have to differ, as far as that is certain."""
    groups = data_parallel(run)
    averaging = {group.members for group in groups}
    candidates = {
        pair for members in averaging for pair in combinations(sorted(set(members) & set(run.ranks))[:MOST_RANKS], 2)
    }
    return sorted(candidates - _partners(run, averaging)) if candidates else []


def _partners(run: Run, averaging: set[tuple[int, ...]]) -> set[Pair]:
    """Return the pairs that exchange something beside gradients."""
    calls = run.calls
    found = {
        (min(rank, peer), max(rank, peer))
        for rank, peer in calls.loc[calls["p2p"] & calls["peer"].notna(), ["rank", "peer"]]
        .drop_duplicates()
        .itertuples(index=False)
    }
    largest = max((len(members) for members in averaging), default=0)
    for members in _members_of(calls, ~calls["p2p"]):
        # The world, or a group that holds several data-parallel ones, tells nothing of any two of its ranks.
        if members not in averaging and 1 < len(members) < largest:
            found |= set(combinations(sorted(members), 2))
        elif members not in averaging and not any(set(members) >= set(each) for each in averaging):
            found |= set(combinations(sorted(members)[:MOST_RANKS], 2))
    forward = (calls["phase"] == "forward") & calls["op"].isin(EXCHANGES)
    forward &= calls["module"].where(forward).isna()
    for members in _members_of(calls, forward):
        found |= set(combinations(sorted(members)[:MOST_RANKS], 2))
    return found


def _members_of(calls: pd.DataFrame, mask: "pd.Series[bool]") -> list[tuple[int, ...]]:
    # Of a million calls each copy of all their columns takes hundreds of megabytes.
    keys = calls.loc[mask, ["group_key", "members"]].drop_duplicates("group_key")
    return [members for members in keys["members"] if members is not None]


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
