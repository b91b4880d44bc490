"""Layouts that cannot be, and what lies where."""

import pytest

from distdiag.errors import DistdiagError
from distdiag.memory_estimate import (
    Item,
    Layout,
    Model,
    Schedule,
    Sharding,
    Training,
    estimate,
    from_config,
    opaque,
    transformer,
)
from distdiag.memory_estimate.share import stages
from distdiag.memory_estimate.traffic import sent_bytes


def model(**changes: object) -> Model:
    numbers: dict[str, object] = {"layers": 6, "hidden": 96, "heads": 6, "vocabulary": 100, **changes}
    return transformer(**numbers)  # type: ignore[arg-type]  # numbers of a test


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        (Layout(tensor=4), "6 heads do not divide by tensor parallel size 4"),
        (Layout(pipeline=7), "6 layers are too few for 7 pipeline parts"),
        (Layout(pipeline=2, chunks=2, micro_batches=2), "2 chunks need --schedule interleaved"),
        (
            Layout(pipeline=2, chunks=3, schedule=Schedule.INTERLEAVED, micro_batches=3),
            "3 micro-batches do not divide by 2 pipeline ranks",
        ),
        (
            Layout(pipeline=2, chunks=2, schedule=Schedule.INTERLEAVED, micro_batches=4),
            "6 layers do not divide by 4 pipeline parts",
        ),
        (Layout(sequence_parallel=True), "sequence parallelism needs tensor parallelism"),
        (Layout(data=8, sharding=Sharding.FSDP, replicas=3), "8 data-parallel ranks do not divide by 3 replicas"),
        (Layout(data=8, replicas=2), "hybrid sharding needs something sharded"),
        (Layout(data=8, expert=2), "the model has no experts to spread"),
        (Layout(data=0), "data must be at least 1, not 0"),
        (Layout(context=3), "sequence 64 does not divide by context parallel size 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(layout: Layout, problem: str) -> None:
    with pytest.raises(DistdiagError) as caught:
        estimate(model(), layout, Training(sequence=64))

    assert caught.value.message == problem
    assert caught.value.hint


def test_experts_have_to_divide_too() -> None:
    routed = model(experts=6, per_token=2)

    with pytest.raises(DistdiagError, match="6 experts do not divide by expert parallel size 4"):
        estimate(routed, Layout(data=4, expert=4), Training(sequence=64))
    with pytest.raises(DistdiagError, match="expert parallel size 3 does not divide 4 data-parallel ranks"):
        estimate(routed, Layout(data=4, expert=3), Training(sequence=64))


def test_expert_parallelism_cuts_the_experts_alone() -> None:
    routed = model(experts=6, per_token=2)
    weights = routed.blocks[0].weights
    of_experts = sum(each.elements for block in routed.blocks for each in block.weights if each.expert)

    sizes = [
        estimate(routed, Layout(data=6, expert=size), Training(sequence=64)).worst.size_of(Item.PARAMETERS)
        for size in (1, 6)
    ]

    assert any(each.expert for each in weights)
    assert sizes[0] - sizes[1] == 2 * (of_experts - of_experts // 6)


def test_layers_that_do_not_divide_stay_in_order_with_more_on_the_first_ranks() -> None:
    held = [len(stage.blocks) for stage in stages(Layout(pipeline=4, micro_batches=4), model())]

    assert held == [2, 2, 1, 1]


def test_tied_embedding_lies_on_both_ends_of_a_pipeline_and_counts_once() -> None:
    tied, free = model(tied=True), model()

    first, last = (stage.size_of(Item.PARAMETERS) for stage in estimate(tied, Layout(pipeline=2), Training()).stages)
    of_free = [stage.size_of(Item.PARAMETERS) for stage in estimate(free, Layout(pipeline=2), Training()).stages]

    assert [first, last] == of_free
    assert free.elements - tied.elements == 100 * 96


def test_fsdp_cuts_rows_so_that_a_small_tensor_is_whole_on_a_rank() -> None:
    """Three rows over four ranks: the first holds one of three, not three quarters of one."""
    from distdiag.memory_estimate.model import Weight
    from distdiag.memory_estimate.share import gathered, shard

    weight = Weight(name="w", rows=3, columns=10)
    fsdp, zero = (Layout(data=4, sharding=each) for each in (Sharding.FSDP, Sharding.ZERO_3))

    assert (shard(weight, fsdp), gathered(weight, fsdp)) == (10, 40)
    assert shard(weight, zero) == 8


def test_fsdp_pads_the_router_of_a_layer_but_not_its_experts_whose_rows_divide() -> None:
    routed = transformer(layers=3, hidden=128, heads=4, vocabulary=128, width=256, experts=8, per_token=2, bias=False)
    block = sum(each.elements for each in routed.blocks[0].weights)
    router_padding = (64 - 8) * 128

    made = estimate(routed, Layout(data=64, sharding=Sharding.FSDP), Training(sequence=64)).worst

    assert made.size_of(Item.PREFETCHED) == 2 * (block + router_padding)


def test_hybrid_sharding_cuts_within_a_replica() -> None:
    hybrid = Layout(data=8, sharding=Sharding.FSDP, replicas=4)
    full = Layout(data=2, sharding=Sharding.FSDP)

    assert (
        estimate(model(), hybrid, Training(sequence=64)).worst.lines
        == estimate(model(), full, Training(sequence=64)).worst.lines
    )


def test_keeping_parameters_gathered_holds_the_whole_model_beside_its_shards() -> None:
    layout = Layout(data=4, sharding=Sharding.FSDP, reshard_after_forward=False)

    made = estimate(model(), layout, Training(sequence=64)).worst

    assert made.size_of(Item.GATHERED) == 2 * model().elements
    assert made.size_of(Item.PREFETCHED) == 0


@pytest.mark.parametrize(
    ("layout", "dimension", "sent"),
    [
        (Layout(data=4), "data", 2 * 3 / 4 * 2),
        (Layout(data=4, sharding=Sharding.ZERO_1), "data", 2 * 3 / 4 * 2),
        (Layout(data=4, sharding=Sharding.ZERO_3), "data", 3 * 3 / 4 * 2),
        (Layout(data=4, sharding=Sharding.FSDP, reshard_after_forward=False), "data", 2 * 3 / 4 * 2),
        (Layout(data=4, sharding=Sharding.FSDP, micro_batches=3), "data", 3 * 3 * 3 / 4 * 2),
    ],
)
def test_traffic_of_data_parallelism_per_parameter(layout: Layout, dimension: str, sent: float) -> None:
    """ZeRO, section 7: as much as data parallelism up to stage 2, half as much again with stage 3."""
    plain = opaque(1_000_000, 10)

    assert sent_bytes(plain, layout, Training())[dimension] / plain.elements == pytest.approx(sent)


def test_traffic_of_tensor_parallelism_is_four_all_reduces_a_layer() -> None:
    """Shoeybi et al. 2019: two in the forward, two in the backward."""
    training = Training(sequence=64, micro_batch=2)

    sent = sent_bytes(model(), Layout(tensor=2), training)

    assert sent == {"tensor": 6 * 4 * 2 * (64 * 2 * 96 * 2) // 2}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": None}, "does not say num_hidden_layers or n_layer"),
        ({"hidden_size": "4k"}, "says hidden_size is '4k', not a number"),
        ({"num_attention_heads": 7}, "hidden 64 does not divide by heads 7"),
        ({"num_key_value_heads": 3}, "heads 4 do not divide by kv heads 3"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "a token cannot go to 3 of 2 experts"),
    ],
)
def test_configurations_that_fit_no_model_are_refused(changes: dict[str, object], problem: str) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10, **changes}

    with pytest.raises(DistdiagError) as caught:
        from_config(config)

    assert problem in caught.value.message
