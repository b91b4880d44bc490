"""What holds of any estimate: it adds up, more sharding never costs more, one rank alone is the plain case."""

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distdiag.memory_estimate import (
    OPTIMIZERS,
    PRECISIONS,
    STATES,
    AttentionKind,
    Item,
    Layout,
    Loss,
    Model,
    Recompute,
    Schedule,
    Sharding,
    Training,
    estimate,
    transformer,
)
from distdiag.memory_estimate.ledger import Ledger

STAGES = (Sharding.DDP, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)
PADDING = 1.02
"""Shards are whole elements, so that all of them may hold a little more than the tensors."""


@st.composite
def models(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Model:
    heads = draw(st.sampled_from([8, 16]))
    experts = draw(st.sampled_from([0, 0, 8]))
    return transformer(
        layers=draw(st.sampled_from([4, 8])),
        hidden=heads * 16,
        heads=heads,
        kv_heads=draw(st.sampled_from([8, heads])),
        width=draw(st.sampled_from([256, 512])),
        vocabulary=draw(st.sampled_from([256, 1000])),
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
        tied=draw(st.booleans()),
        dropout=draw(st.booleans()),
        experts=experts,
        per_token=2 if experts else 1,
    )


trainings = st.builds(
    Training,
    sequence=st.sampled_from([64, 256]),
    micro_batch=st.sampled_from([1, 2, 4]),
    precision=st.sampled_from(list(PRECISIONS.values())),
    optimizer=st.sampled_from(list(OPTIMIZERS.values())),
    recompute=st.sampled_from(list(Recompute)),
    attention=st.sampled_from(list(AttentionKind)),
    loss=st.sampled_from(list(Loss)),
    bucket_views=st.booleans(),
    fragmentation=st.sampled_from([0.0, 0.1]),
    context_bytes=st.sampled_from([0, 1 << 20]),
)


@st.composite
def layouts(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Layout:
    tensor, pipeline = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    return Layout(
        data=draw(st.sampled_from([1, 2, 4, 8])),
        sharding=draw(st.sampled_from(list(Sharding))),
        reshard_after_forward=draw(st.booleans()),
        tensor=tensor,
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        context=draw(st.sampled_from([1, 2])),
        pipeline=pipeline,
        schedule=draw(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B])),
        micro_batches=draw(st.sampled_from([1, 4, 8])),
    )


UNEVEN = ("adafactor", "muon")
"""Optimizers whose states of two tensors of one size differ in theirs."""


def most_states(model: Model, layout: Layout, training: Training) -> int:
    return max(stage.states_bytes for stage in estimate(model, layout, training).stages)


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_every_stage_adds_up_and_holds_its_parameters(model: Model, layout: Layout, training: Training) -> None:
    made = estimate(model, layout, training)

    assert made.worst.total_bytes == max(stage.total_bytes for stage in made.stages)
    for stage in made.stages:
        assert all(line.size_bytes > 0 and line.formula and line.source for line in stage.lines)
        assert stage.total_bytes == sum(line.size_bytes for line in stage.lines)
        assert stage.size_of(*STATES) <= stage.states_bytes
        assert stage.size_of(Item.PARAMETERS) > 0


def test_gradients_on_their_way_to_those_that_are_there_are_no_states() -> None:
    model = transformer(layers=4, hidden=128, heads=8, width=256, vocabulary=256)
    layout = Layout(sharding=Sharding.FSDP, reshard_after_forward=False, micro_batches=4)
    training = Training(sequence=64, micro_batch=1, precision=PRECISIONS["mixed"], optimizer=OPTIMIZERS["adam"])

    stage = estimate(model, layout, training).worst

    assert stage.moment.startswith("backward")
    assert stage.size_of(*STATES) <= stage.states_bytes


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_a_higher_stage_of_zero_never_holds_more_states(model: Model, layout: Layout, training: Training) -> None:
    sizes = [most_states(model, dataclasses.replace(layout, sharding=stage), training) for stage in STAGES]

    assert sizes == sorted(sizes, reverse=True)


def test_the_fullest_rank_is_that_with_most_bytes() -> None:
    model = transformer(layers=1, hidden=128, heads=4, width=512, vocabulary=1000, tied=True)
    training = Training(sequence=64, micro_batch=1, precision=PRECISIONS["fp32"], optimizer=OPTIMIZERS["muon"])
    layout = Layout(data=2, sharding=Sharding.ZERO_1_TENSORS)

    (stage,) = estimate(model, layout, training).stages

    moments = stage.size_of(Item.MOMENTS)
    whole = estimate(model, Layout(), training).stages[0].size_of(Item.MOMENTS)
    assert whole / 2 <= moments < whole


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_more_ranks_never_hold_more_states_each(model: Model, layout: Layout, training: Training) -> None:
    # Whole tensors are dealt out by their size, so that of such states one rank may come to hold more.
    assume(layout.sharding is not Sharding.ZERO_1_TENSORS or training.optimizer.name not in UNEVEN)
    base = most_states(model, layout, training)

    for field in ("data", "tensor", "context"):
        more = dataclasses.replace(layout, **{field: 2 * getattr(layout, field)})
        assert most_states(model, more, training) <= base, field


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_all_shards_together_are_the_model(model: Model, layout: Layout, training: Training) -> None:
    whole = dataclasses.replace(layout, sharding=Sharding.DDP)
    sharded = dataclasses.replace(layout, sharding=Sharding.ZERO_3)

    one = sum(stage.states_bytes for stage in estimate(model, whole, training).stages)
    part = sum(stage.states_bytes for stage in estimate(model, sharded, training).stages)

    assert one <= part * layout.shards
    if training.optimizer.name not in ("adam-8bit", "adafactor"):  # their rows and blocks do not divide
        assert part * layout.shards <= one * PADDING + 1000 * layout.shards


@settings(max_examples=40, deadline=None)
@given(models(), trainings, st.sampled_from(list(Sharding)))
def test_one_rank_alone_holds_the_same_however_it_is_sharded(
    model: Model, training: Training, sharding: Sharding
) -> None:
    plain = estimate(model, Layout(), training)
    alone = estimate(model, Layout(sharding=sharding), training)

    # FSDP2's shards are the master, so that nothing is kept twice where gradients are summed in FP32.
    kept_once = sharding is Sharding.FSDP and training.precision.name == "mixed-fp32-gradients"
    assert plain.worst.states_bytes - alone.worst.states_bytes == (2 * model.elements if kept_once else 0)
    if sharding.stage < 2:
        assert alone.worst.lines == plain.worst.lines


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_full_recomputation_never_needs_more(model: Model, layout: Layout, training: Training) -> None:
    kept, computed = (
        estimate(model, layout, dataclasses.replace(training, recompute=each)).worst.total_bytes
        for each in (Recompute.NONE, Recompute.FULL)
    )

    assert computed <= kept


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_longer_samples_and_more_of_them_never_need_less(model: Model, layout: Layout, training: Training) -> None:
    base = estimate(model, layout, training).worst.total_bytes

    for field in ("sequence", "micro_batch"):
        more = dataclasses.replace(training, **{field: 2 * getattr(training, field)})
        assert estimate(model, layout, more).worst.total_bytes >= base, field


@settings(max_examples=40, deadline=None)
@given(models(), layouts(), trainings)
def test_activations_grow_with_the_micro_batches_of_gpipe_and_not_with_those_of_1f1b(
    model: Model, layout: Layout, training: Training
) -> None:
    few, many = 2 * layout.pipeline, 4 * layout.pipeline

    def kept(schedule: Schedule, micro_batches: int) -> list[int]:
        changed = dataclasses.replace(layout, schedule=schedule, micro_batches=micro_batches)
        return [stage.size_of(Item.ACTIVATIONS, Item.SCORES) for stage in estimate(model, changed, training).stages]

    assert kept(Schedule.ONE_F_ONE_B, few) == kept(Schedule.ONE_F_ONE_B, many)
    if layout.pipeline > 1:
        assert all(map(int.__lt__, kept(Schedule.GPIPE, few), kept(Schedule.GPIPE, many)))


@given(st.lists(st.tuples(st.sampled_from(list(Item)), st.integers(-50, 50))))
def test_peak_of_a_ledger_is_the_largest_sum_it_ever_held(moves: list[tuple[Item, int]]) -> None:
    ledger, total, most = Ledger(), 0, 0
    for number, (item, size) in enumerate(moves):
        ledger.moment = str(number)
        if size >= 0:
            ledger.hold(item, size)
        else:
            size = -min(-size, ledger.now.get(item, 0))
            ledger.free(item, -size)
        total += size
        most = max(most, total)

    assert ledger.total == total
    assert ledger.peak.total == most
