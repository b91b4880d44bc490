"""The memory estimate against what torch's own tracker measures while small transformers are trained on two ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distdiag.memory_estimate import (
    OPTIMIZERS,
    PRECISIONS,
    AttentionKind,
    Item,
    Layout,
    Recompute,
    Schedule,
    Sharding,
    StageEstimate,
    Training,
    estimate,
    transformer,
)
from tests import memory_training as program
from tests.ranks import launch

RANKS = 2
CAP_SECONDS = 240.0
ITEM_WITHIN, PEAK_WITHIN = 0.05, 0.10
NOTICEABLE = 0.01
"""Items below this part of the peak, like the counters of an optimizer's steps, are not compared by themselves."""

SHARED_CATEGORIES: Mapping[str, tuple[Item, ...]] = {
    "Parameter": (Item.PARAMETERS,),
    "Gradient": (Item.GRADIENTS,),
    "Optstate": (Item.MOMENTS,),
    "Activation": (Item.ACTIVATIONS, Item.SCORES, Item.LOGITS, Item.BUCKETS, Item.BORDERS, Item.CASTS),
    "Temp": (Item.TEMPORARIES, Item.ATTENTION_TEMPORARIES, Item.LOGIT_GRADIENTS),
}
"""What torch's MemTracker calls the items of an estimate."""
FSDP_CATEGORIES: Mapping[str, tuple[Item, ...]] = {
    "Sharded Param": (Item.PARAMETERS,),
    "Unsharded Param": (Item.GATHERED,),
    "Sharded Grad": (Item.GRADIENTS,),
    "OptState": (Item.MOMENTS,),
    "Activation": (Item.ACTIVATIONS, Item.LOGITS),
    "Temp": (Item.TEMPORARIES, Item.UNIT_GRADIENTS, Item.LOGIT_GRADIENTS),
    "All Gather": (Item.PREFETCHED,),
    "Reduce Scatter": (Item.BUCKETS,),
}
"""The same of its FSDPMemTracker."""
PIPELINE_CATEGORIES = {
    **{name: items for name, items in SHARED_CATEGORIES.items() if name not in ("Activation", "Temp")},
    "Activation + Temp": SHARED_CATEGORIES["Activation"] + SHARED_CATEGORIES["Temp"],
}
"""Without its module tracker it takes for temporary what is computed again, and gradients that are being sent."""

MOMENTS_APART = {
    "Parameter": SHARED_CATEGORIES["Parameter"],
    "Optstate": SHARED_CATEGORIES["Optstate"],
    "Gradient + Activation + Temp": tuple(
        item for name in ("Gradient", "Activation", "Temp") for item in SHARED_CATEGORIES[name]
    ),
}
"""Gathers and scatters end when they do: which of two moments is the peak, both of nearly the same size, is chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a model is trained, and in which words the tracker tells of it."""

    layout: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    categories: Mapping[str, tuple[Item, ...]] = field(default_factory=lambda: SHARED_CATEGORIES)


PIPELINE: dict[str, Any] = {"pipeline": RANKS, "micro_batches": program.MICRO_BATCHES}
PLAIN: dict[str, Any] = {"kv_heads": program.HEADS, "gated": False, "dropout": True}
WAYS: Mapping[str, Way] = {
    "one": Way(),
    "scores": Way(model=PLAIN, training={"attention": AttentionKind.EAGER}),
    "bf16": Way(training={"precision": PRECISIONS["bf16"]}),
    "autocast": Way(training={"precision": PRECISIONS["autocast"]}),
    "ddp": Way(layout={"data": RANKS}),
    "zero1": Way(layout={"data": RANKS, "sharding": Sharding.ZERO_1_TENSORS}),
    "fsdp": Way(layout={"data": RANKS, "sharding": Sharding.FSDP}, categories=FSDP_CATEGORIES),
    "fsdp-mixed": Way(
        layout={"data": RANKS, "sharding": Sharding.FSDP},
        training={"precision": PRECISIONS["mixed-fp32-gradients"]},
        categories=FSDP_CATEGORIES,
    ),
    "tensor": Way(layout={"tensor": RANKS}),
    "sequence": Way(
        layout={"tensor": RANKS, "sequence_parallel": True},
        training={"keeps_gathered_sequence": True},
        categories=MOMENTS_APART,
    ),
    "gpipe": Way(layout={**PIPELINE, "schedule": Schedule.GPIPE}, categories=PIPELINE_CATEGORIES),
    "1f1b": Way(layout=PIPELINE, categories=PIPELINE_CATEGORIES),
    "interleaved": Way(
        layout={**PIPELINE, "schedule": Schedule.INTERLEAVED, "chunks": 2}, categories=PIPELINE_CATEGORIES
    ),
}
WITH_RECOMPUTATION = ("one", "scores", "autocast", "ddp", "fsdp", "fsdp-mixed", "tensor", "1f1b")
TRAINED = [*WAYS, *(f"{way}/full" for way in WITH_RECOMPUTATION)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, int]]]:
    """The tracker's peaks of each rank, by way; one launch trains them all."""
    text = Path(program.__file__).read_text()
    directory = tmp_path_factory.mktemp("training")
    ways = {"WAYS": " ".join(TRAINED)}
    ranks = launch(text, directory, world_size=RANKS, cap_seconds=CAP_SECONDS, variables=ways, forked=True)
    assert [rank.code for rank in ranks] == [0] * RANKS, ranks[0].stderr[-2000:]
    return [rank.told for rank in ranks]


def estimated(name: str, rank: int) -> tuple[StageEstimate, Way]:
    kind, _, recompute = name.partition("/")
    way = WAYS[kind]
    model = transformer(
        **{
            "layers": program.LAYERS,
            "hidden": program.HIDDEN,
            "heads": program.HEADS,
            "kv_heads": program.KV_HEADS,
            "width": program.WIDTH,
            "vocabulary": program.VOCABULARY,
            "gated": True,
            **way.model,
        }
    )
    training = Training(
        sequence=program.SEQUENCE,
        micro_batch=program.SAMPLES,
        optimizer=OPTIMIZERS["adam-loop"],
        recompute=Recompute.FULL if recompute else Recompute.NONE,
        **{"precision": PRECISIONS["fp32"], **way.training},
    )
    stages = estimate(model, Layout(**way.layout), training).stages
    return stages[rank if len(stages) > 1 else 0], way


def by_category(peak: Mapping[str, int], categories: Mapping[str, tuple[Item, ...]]) -> dict[str, int]:
    return {name: sum(peak.get(each, 0) for each in name.split(" + ")) for name in categories}


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", TRAINED)
def test_estimate_is_what_the_tracker_measures(measured: list[dict[str, dict[str, int]]], name: str, rank: int) -> None:
    stage, way = estimated(name, rank)
    peak = measured[rank][name]

    truth = by_category(peak, way.categories)
    told = {category: stage.size_of(*items) for category, items in way.categories.items()}

    assert stage.total_bytes == pytest.approx(peak["Total"], rel=PEAK_WITHIN)
    for category, size in truth.items():
        if max(size, told[category]) > NOTICEABLE * peak["Total"]:
            assert told[category] == pytest.approx(size, rel=ITEM_WITHIN), (category, stage.moment, told, truth)
