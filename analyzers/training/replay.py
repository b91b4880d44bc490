"""What it takes to run one step again: seeds, samplers and samples of each rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from distdiag.analyzers.training.samples import batches_of_step
from distdiag.run import Run

SAMPLER_FIELDS = (
    "dataset",
    "length",
    "batch_size",
    "workers",
    "sampler",
    "shuffle",
    "seed",
    "epoch",
    "replicas",
    "replica",
    "base_seed",
)
BATCH_FIELDS = ("batch", "samples", "ids", "thinned", "tokens", "positions", "contents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A batch that a rank had, and how its loader came to it."""

    facts: Mapping[str, Any]
    """``BATCH_FIELDS``, as far as they are known; ``batch`` counts from 0 in its epoch."""
    loader: Mapping[str, Any]
    """``SAMPLER_FIELDS``, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplay:
    """What one rank did in the step."""

    rank: int
    loss: float | str | None
    seed: int | None
    """Seed that torch was given last."""
    random_states: Mapping[str, int]
    """32-bit digests of generators, after the backward of ``random_step``."""
    random_step: int | None
    batches: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What all ranks did in a step."""

    step: int
    script: str | None
    world_size: int | None
    ranks: tuple[RankReplay, ...]


def replay_of(run: Run, step: int) -> Replay:
    """Return what is known of a step; ranks of which nothing is known are left out."""
    batches = batches_of_step(run, step)
    numerics = run.numerics
    randoms = numerics[numerics["rng"].map(bool).astype("bool") & (numerics["step"] <= step)].sort_values("step")
    losses = numerics[(numerics["step"] == step) & numerics["loss"].notna()].drop_duplicates("rank", keep="last")
    known = sorted({*batches["rank"], *losses["rank"], *run.steps.loc[run.steps["step"] == step, "rank"]})
    by_loss = dict(zip(losses["rank"], losses["loss"], strict=True))
    scripts = [text for text in run.headers["script"] if isinstance(text, str)]
    return Replay(
        step=step,
        script=scripts[0] if scripts else None,
        world_size=run.world_size,
        ranks=tuple(
            _of_rank(run, int(rank), by_loss.get(rank), randoms[randoms["rank"] == rank], batches) for rank in known
        ),
    )


def _of_rank(run: Run, rank: int, loss: Any, randoms: pd.DataFrame, batches: pd.DataFrame) -> RankReplay:
    states: dict[str, int] = dict(randoms["rng"].iloc[-1]) if len(randoms) else {}
    seed = states.pop("torch.seed", None)
    return RankReplay(
        rank=rank,
        loss=loss,
        seed=seed,
        random_states=states,
        random_step=int(randoms["step"].iloc[-1]) if len(randoms) else None,
        batches=tuple(
            Drawn(facts=_known(row, BATCH_FIELDS), loader=_loader(run, rank, row))
            for row in batches[batches["rank"] == rank].to_dict("records")
        ),
    )


def _loader(run: Run, rank: int, batch: Mapping[Any, Any]) -> dict[str, Any]:
    told = run.loaders[(run.loaders["rank"] == rank) & (run.loaders["loader"] == batch["loader"])]
    told = told[told["time_ns"] <= batch["time_ns"]].sort_values("time_ns")
    return _known(told.iloc[-1].to_dict(), SAMPLER_FIELDS) if len(told) else {}


def _known(row: Mapping[Any, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        value = row[name]
        if isinstance(value, tuple):
            if value:
                found[name] = list(value)
        elif not pd.isna(value) and value != "":
            found[name] = value.item() if hasattr(value, "item") else value
    return found
