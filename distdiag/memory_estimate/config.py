"""Models described by a ``config.json`` in the style of Hugging Face transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdiag.errors import DistdiagError
from distdiag.memory_estimate.model import Model, transformer

NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
    "width": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "vocabulary": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "per_token": ("num_experts_per_tok", "num_experts_per_token", "top_k"),
    "expert_width": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}
"""What the families call the same number; the first that is there counts."""
LEARNED_POSITIONS = frozenset({"gpt2", "bert", "roberta", "opt", "gpt_bigcode", "distilbert", "electra"})
GATED = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "deepseek_v2"}
    | {"deepseek_v3", "phi3", "olmo", "olmo2", "cohere", "starcoder2_gated", "granite", "smollm3", "olmoe"}
)
"""Families whose MLP has a gate, and whose linear layers have no bias."""
TIED = frozenset({"gpt2", "bert", "roberta", "opt", "gemma", "gemma2", "distilbert", "electra", "gpt_bigcode"})
"""Families that tie the head to the embedding unless they say otherwise."""
KEY_BIAS = frozenset({"qwen2", "qwen2_moe"})
"""Families without biases but in queries, keys and values."""
DROPOUTS = ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout")


def read_config(path: Path) -> Model:
    """Return the model that a ``config.json`` describes.

    Raises ``DistdiagError`` where there is none, or a number that is needed is not in it.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DistdiagError(f"{error.strerror}: {file}", "pass a config.json, or the folder it is in") from error
    except UnicodeDecodeError as error:
        raise DistdiagError(f"{file} is no text", "pass a config.json as transformers writes it") from error
    except json.JSONDecodeError as error:
        raise DistdiagError(f"{file} is no JSON: {error}", "pass a config.json as transformers writes it") from error
    if not isinstance(content, dict):
        raise DistdiagError(f"{file} holds no object", "pass a config.json as transformers writes it")
    return from_config(content, origin=str(file))


def from_config(content: Mapping[str, Any], *, origin: str = "config.json") -> Model:
    """Return the model that the content of a ``config.json`` describes."""
    text = content.get("text_config")  # models of text and images keep the language model's numbers apart
    merged = {**content, **text} if isinstance(text, dict) else dict(content)
    family = str(merged.get("model_type", ""))
    numbers = {what: _number(merged, what, origin) for what in NAMES}
    for what in ("layers", "hidden", "heads", "vocabulary"):
        if numbers[what] is None:
            keys = " or ".join(NAMES[what][:2])
            raise DistdiagError(f"{origin} does not say {keys}", "is it the config.json of a transformer?")
    gated = family in GATED or str(merged.get("hidden_act", "")) in ("silu", "swish") or "swiglu" in str(merged)
    layer_norm = not ("rms_norm_eps" in merged or gated)
    bias = bool(merged.get("attention_bias", merged.get("use_bias", not gated)))
    return transformer(
        name=family or "transformer",
        origin=origin,
        layers=numbers["layers"] or 0,
        hidden=numbers["hidden"] or 0,
        heads=numbers["heads"] or 0,
        vocabulary=numbers["vocabulary"] or 0,
        kv_heads=numbers["kv_heads"],
        head_size=numbers["head_size"],
        width=numbers["width"],
        gated=gated,
        bias=bias and not gated,
        kv_bias=bias or family in KEY_BIAS,
        positions=(numbers["positions"] or 0) if family in LEARNED_POSITIONS else 0,
        tied=bool(merged.get("tie_word_embeddings", family in TIED)),
        dropout=any(float(merged.get(name) or 0) > 0 for name in DROPOUTS),
        layer_norm=layer_norm,
        experts=numbers["experts"] or 0,
        per_token=numbers["per_token"] or 1,
        expert_width=numbers["expert_width"],
        shared_width=_shared_width(merged, numbers["expert_width"] or numbers["width"] or 0),
        dense_layers=numbers["dense_layers"] or 0,
    )


def _number(content: Mapping[str, Any], what: str, origin: str) -> int | None:
    for key in NAMES[what]:
        value = content.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise DistdiagError(f"{origin} says {key} is {value!r}, not a number", "a whole number is needed")
        return value
    return None


def _shared_width(content: Mapping[str, Any], expert_width: int) -> int:
    """Return the width of the experts that all tokens pass."""
    named = content.get("shared_expert_intermediate_size")
    if isinstance(named, int):
        return named
    number = content.get("n_shared_experts")
    return number * expert_width if isinstance(number, int) else 0
