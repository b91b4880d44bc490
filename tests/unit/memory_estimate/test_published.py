"""Figures that others published, reproduced."""

import pytest

from distdiag.memory_estimate import (
    OPTIMIZERS,
    PRECISIONS,
    AttentionKind,
    Layout,
    Model,
    Recompute,
    Schedule,
    Sharding,
    Training,
    estimate,
    from_config,
    opaque,
    transformer,
)
from distdiag.memory_estimate.share import stages
from distdiag.memory_estimate.tape import Tape, tape, widths

GB = 1e9
ZERO_TABLE_1 = {
    (7.5e9, 1): (120, 120, 120),
    (7.5e9, 4): (52.5, 41.3, 30),
    (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 256): (30.4, 15.4, 0.47),
    (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 1): (2048, 2048, 2048),
    (128e9, 4): (896, 704, 512),
    (128e9, 16): (608, 368, 128),
    (128e9, 64): (536, 284, 32),
    (128e9, 256): (518, 263, 8),
    (128e9, 1024): (513, 257, 2),
    (1e12, 1): (16000, 16000, 16000),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 16): (4750, 2875, 1000),
    (1e12, 64): (4187, 2218, 250),
    (1e12, 256): (4046, 2054, 62.5),
    (1e12, 1024): (4011, 2013, 15.6),
}
"""GB of a device for stages 1, 2 and 3 by parameters and ranks (Rajbhandari et al. 2020, table 1)."""
KORTHIKANTI_TABLE_3 = {
    "22B": (64, 6144, 48, 4),
    "175B": (96, 12288, 96, 1),
    "530B": (128, 20480, 105, 1),
    "1T": (160, 25600, 128, 1),
}
"""Heads, hidden size, layers and micro-batch (Korthikanti et al. 2022, table 3), for 2,048 tokens and TP 8."""
TOKENS, TENSOR = 2048, 8
VOCABULARY = 51200


def states_gb(parameters: float, ranks: int, sharding: Sharding, precision: str = "mixed") -> float:
    layout = Layout(data=ranks, sharding=sharding)
    made = estimate(opaque(round(parameters), 1), layout, Training(precision=PRECISIONS[precision]))
    return made.worst.states_bytes / GB


@pytest.mark.parametrize(("parameters", "ranks"), ZERO_TABLE_1)
def test_table_1_of_the_zero_paper(parameters: float, ranks: int) -> None:
    told = [states_gb(parameters, ranks, stage) for stage in (Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)]

    # The paper cuts some of its figures instead of rounding them.
    assert told == pytest.approx(ZERO_TABLE_1[parameters, ranks], rel=0.002, abs=0.07 if parameters < 1e11 else 0.9)


def test_figure_1_of_the_zero_paper() -> None:
    stages_ = (Sharding.DDP, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)

    assert [round(states_gb(7.5e9, 64, each), 1) for each in stages_] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_bytes_per_parameter_of_megatrons_distributed_optimizer(ranks: int) -> None:
    """Megatron-LM's documentation: 18 or 6 + 12/d with 16-bit parameters and FP32 gradients, 16 or 8 + 8/d in FP32."""
    parameters = 1e9

    mixed = [states_gb(parameters, ranks, each, "mixed-fp32-gradients") for each in (Sharding.DDP, Sharding.ZERO_1)]
    single = [states_gb(parameters, ranks, each, "fp32") for each in (Sharding.DDP, Sharding.ZERO_1)]

    assert mixed == pytest.approx([18, 6 + 12 / ranks])
    assert single == pytest.approx([16, 8 + 8 / ranks])


def korthikanti(name: str) -> tuple[Model, int]:
    heads, hidden, layers, samples = KORTHIKANTI_TABLE_3[name]
    model = transformer(layers=layers, hidden=hidden, heads=heads, vocabulary=VOCABULARY, dropout=True)
    return model, samples


def saved_bytes(block: Tape) -> int:
    """What a layer keeps, without the statistics of its norms, which the paper neglects."""
    return sum(step.saved + step.scores for step in block.steps)


@pytest.mark.parametrize("name", KORTHIKANTI_TABLE_3)
def test_table_2_of_korthikanti_et_al(name: str) -> None:
    """Activation bytes of a layer: no parallelism, TP, TP with SP, with selective and with full recomputation."""
    (heads, hidden, _, b), (model, samples) = KORTHIKANTI_TABLE_3[name], korthikanti(name)
    plane, t, scores = TOKENS * b * hidden, TENSOR, 5 * heads * TOKENS / hidden
    eager = Training(sequence=TOKENS, micro_batch=samples, attention=AttentionKind.EAGER)
    selective = Training(
        sequence=TOKENS, micro_batch=samples, attention=AttentionKind.EAGER, recompute=Recompute.SELECTIVE
    )
    parallel, cut = Layout(tensor=t), Layout(tensor=t, sequence_parallel=True)

    block = model.blocks[0]

    assert saved_bytes(tape(block, model, Layout(), eager)) == pytest.approx(plane * (34 + scores))
    assert saved_bytes(tape(block, model, parallel, eager)) == pytest.approx(plane * (10 + 24 / t + scores / t))
    assert saved_bytes(tape(block, model, cut, eager)) == pytest.approx(plane / t * (34 + scores))
    assert saved_bytes(tape(block, model, cut, selective)) == pytest.approx(plane / t * 34)
    assert tape(block, model, parallel, eager).stream == pytest.approx(2 * plane)


@pytest.mark.parametrize(("name", "part"), [("175B", 0.70), ("530B", 0.65)])
def test_selective_recomputation_saves_what_korthikanti_et_al_say(name: str, part: float) -> None:
    """Section 5: 70 % of the activations of GPT-3, 65 % of those of MT-NLG."""
    model, samples = korthikanti(name)
    kept = {
        each: saved_bytes(
            tape(
                model.blocks[0],
                model,
                Layout(tensor=TENSOR, sequence_parallel=True),
                Training(sequence=TOKENS, micro_batch=samples, attention=AttentionKind.EAGER, recompute=each),
            )
        )
        for each in (Recompute.NONE, Recompute.SELECTIVE)
    }

    assert 1 - kept[Recompute.SELECTIVE] / kept[Recompute.NONE] == pytest.approx(part, abs=0.01)


def test_fused_attention_keeps_what_selective_recomputation_keeps() -> None:
    model, samples = korthikanti("175B")
    fused = Training(sequence=TOKENS, micro_batch=samples)

    assert saved_bytes(tape(model.blocks[0], model, Layout(), fused)) == TOKENS * samples * model.hidden * 34


@pytest.mark.parametrize(("pipeline", "chunks"), [(2, 2), (4, 3), (8, 3), (35, 3)])
def test_interleaved_schedule_holds_what_korthikanti_et_al_say(pipeline: int, chunks: int) -> None:
    """Section 4.2.3: the first stage holds L · (1 + (p - 1) / (p · m)) layers' worth."""
    layers = pipeline * chunks
    layout = Layout(pipeline=pipeline, chunks=chunks, schedule=Schedule.INTERLEAVED, micro_batches=pipeline * 4)
    model = opaque(layers * 100, layers)

    first = stages(layout, model)[0]

    held = first.in_flight * len(first.blocks) / chunks
    assert held == pytest.approx(layers * (1 + (pipeline - 1) / (pipeline * chunks)))


@pytest.mark.parametrize("micro_batches", [1, 3, 8, 64])
def test_first_stage_of_1f1b_holds_all_layers_and_gpipe_all_micro_batches(micro_batches: int) -> None:
    model = opaque(1600, 16)

    held = {
        schedule: stages(Layout(pipeline=8, schedule=schedule, micro_batches=micro_batches), model)[0].in_flight
        for schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
    }

    assert held == {Schedule.ONE_F_ONE_B: min(8, micro_batches), Schedule.GPIPE: micro_batches}


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MODELS = {
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        124_439_808,
    ),
    "Llama 3 8B": (LLAMA, 8_030_261_248),
    "Llama 3 70B": (
        {
            **LLAMA,
            "hidden_size": 8192,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "intermediate_size": 28672,
        },
        70_553_706_496,
    ),
    "Llama 3.2 1B": (
        {
            **LLAMA,
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "head_dim": 64,
            "intermediate_size": 8192,
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "Mistral 7B": ({**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7_241_732_096),
    "Mixtral 8x7B": (
        {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "Qwen 2 7B": (
        {
            **LLAMA,
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
}
"""Configurations and the parameters that their publishers count."""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name: str) -> None:
    config, parameters = MODELS[name]

    assert from_config(config).elements == parameters


def test_bert_has_all_but_pooler_and_token_types() -> None:
    config = {
        "model_type": "bert",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
    }

    pooler, token_types = 768 * 768 + 768, 2 * 768
    assert from_config(config).elements == 109_482_240 - pooler - token_types


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [("adam-fused", 8), ("sgd", 0), ("sgd-momentum", 4), ("lion", 4), ("adam-8bit", 2 + 8 / 256), ("adafactor", 0)],
)
def test_states_of_optimizers_by_parameter(optimizer: str, bytes_each: float) -> None:
    model = transformer(layers=2, hidden=4096, heads=32, vocabulary=32000, gated=True, bias=False)

    with_it, without = (
        estimate(model, Layout(), Training(optimizer=OPTIMIZERS[each])).worst.states_bytes
        for each in (optimizer, "sgd")
    )

    assert (with_it - without) / model.elements == pytest.approx(bytes_each, abs=0.005)


def test_muon_keeps_one_moment_for_matrices_of_blocks_and_two_elsewhere() -> None:
    model = transformer(layers=2, hidden=64, heads=4, vocabulary=100, bias=False, layer_norm=False)
    matrices = sum(weight.elements for block in model.blocks for weight in block.weights if weight.matrix)

    muon, none = (
        estimate(model, Layout(), Training(optimizer=OPTIMIZERS[each])).worst.states_bytes for each in ("muon", "sgd")
    )

    assert muon - none == 4 * (matrices + 2 * (model.elements - matrices))


def test_context_parallelism_cuts_the_tokens_of_a_rank() -> None:
    assert widths(Training(sequence=4096, micro_batch=2), Layout(context=4), 64).tokens == 2048
