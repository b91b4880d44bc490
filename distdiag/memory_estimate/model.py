"""What a model is made of: its weights by place, and what the passes through a block depend on."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdiag.errors import DistdiagError

UNKNOWN = "weights"
"""Name of the weights of a layer of which only the total is known."""


class Split(StrEnum):
    """How tensor parallelism cuts a weight."""

    NONE = "none"
    ROWS = "rows"
    """The first dimension: column-parallel linear layers, vocabulary-parallel embeddings."""
    COLUMNS = "columns"
    """The second dimension: row-parallel linear layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor, or ``count`` equal ones: the experts of a layer."""

    name: str
    rows: int
    columns: int = 1
    split: Split = Split.NONE
    count: int = 1
    expert: bool = False

    @property
    def elements(self) -> int:
        """Return the elements of all of them, not sharded."""
        return self.rows * self.columns * self.count

    @property
    def matrix(self) -> bool:
        """Whether it has two dimensions; optimizers treat vectors apart."""
        return self.columns > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one block; grouped queries have fewer ``kv_heads`` than ``heads``."""

    heads: int
    kv_heads: int
    head_size: int

    @property
    def query_width(self) -> int:
        """Return the width of the queries, and of what attention gives."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Return the width of the keys, which is that of the values."""
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """The other half of a block: dense, or ``experts`` of which each token goes to ``per_token``."""

    width: int
    gated: bool = False
    experts: int = 0
    per_token: int = 1
    shared_width: int = 0
    """Width of an expert that all tokens pass, beside the routed ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One transformer layer."""

    weights: tuple[Weight, ...]
    attention: Attention | None = None
    """None where only the weights are known, and activations are measured or left out."""
    mlp: Mlp | None = None
    measured_bytes: int | None = None
    """What the block saved for its backward when it ran on the meta device, with its examples."""
    largest_bytes: int = 0
    """The largest tensor of these: its gradient is what the backward makes beside."""
    input_bytes: int = 0
    """What came in then, which is all that full recomputation keeps."""

    @property
    def elements(self) -> int:
        """Return the parameters of the block, not sharded."""
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A stack of blocks between an embedding and a head."""

    name: str
    hidden: int = 0
    """Width of the stream between the blocks; 0 where only the weights are known."""
    vocabulary: int = 0
    embedding: tuple[Weight, ...] = ()
    blocks: tuple[Block, ...] = ()
    final: tuple[Weight, ...] = ()
    """The last norm and the head, without the matrix that is tied to the embedding."""
    tied: bool = False
    dropout: bool = False
    norm_statistics: int = 2
    """Numbers that a norm keeps per token: mean and deviation, or the deviation alone."""
    origin: str = "numbers"
    measured_outside_bytes: int = 0
    """What operations outside the blocks saved on the meta device."""

    @property
    def elements(self) -> int:
        """Return the parameters, not sharded; tied ones count once."""
        outside = sum(weight.elements for weight in (*self.embedding, *self.final))
        return outside + sum(block.elements for block in self.blocks)

    @property
    def activations_known(self) -> bool:
        """Whether the passes through the blocks can be described."""
        return all(block.attention is not None or block.measured_bytes is not None for block in self.blocks)

    @property
    def layers_known(self) -> bool:
        """Whether the size of a layer is more than that of the model."""
        return len(self.blocks) > 1 or self.activations_known

    @property
    def measured(self) -> bool:
        """Whether activations come from a run on the meta device."""
        return any(block.measured_bytes is not None for block in self.blocks)


def transformer(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    name: str = "transformer",
    kv_heads: int | None = None,
    head_size: int | None = None,
    width: int | None = None,
    gated: bool = False,
    bias: bool = True,
    positions: int = 0,
    tied: bool = False,
    dropout: bool = False,
    layer_norm: bool = True,
    experts: int = 0,
    per_token: int = 1,
    expert_width: int | None = None,
    shared_width: int = 0,
    dense_layers: int = 0,
    kv_bias: bool | None = None,
    origin: str = "numbers",
) -> Model:
    """Return a transformer from its numbers; the first ``dense_layers`` have no experts.

    ``width`` is that of the MLP (default 4 · hidden), ``positions`` the rows of a learned position table.
    Raises ``DistdiagError`` where the numbers fit no transformer.
    """
    _check(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary)
    if head_size is None and hidden % heads:
        raise DistdiagError(f"hidden {hidden} does not divide by heads {heads}", "say the size of a head: --head-size")
    attention = Attention(heads=heads, kv_heads=kv_heads or heads, head_size=head_size or hidden // heads)
    if heads % attention.kv_heads:
        raise DistdiagError(f"heads {heads} do not divide by kv heads {attention.kv_heads}", "each group has as many")
    if experts and not 1 <= per_token <= experts:
        raise DistdiagError(f"a token cannot go to {per_token} of {experts} experts", "see --experts-per-token")
    dense = Mlp(width=width or 4 * hidden, gated=gated)
    routed = Mlp(
        width=expert_width or dense.width, gated=gated, experts=experts, per_token=per_token, shared_width=shared_width
    )
    norms = _norms(hidden, layer_norm, "norm1", "norm2")
    around = (*norms, *_attention_weights(attention, hidden, bias, bias if kv_bias is None else kv_bias))
    blocks = [
        Block(weights=(*around, *_mlp_weights(mlp, hidden, bias)), attention=attention, mlp=mlp)
        for mlp in [routed if experts and layer >= dense_layers else dense for layer in range(layers)]
    ]
    embedding, final = _outside(hidden, vocabulary, positions, tied, layer_norm)
    return Model(
        name=name,
        hidden=hidden,
        vocabulary=vocabulary,
        embedding=embedding,
        blocks=tuple(blocks),
        final=final,
        tied=tied,
        dropout=dropout,
        norm_statistics=2 if layer_norm else 1,
        origin=origin,
    )


def opaque(parameters: int, layers: int, *, name: str = "model", origin: str = "numbers") -> Model:
    """Return a model of which only the size is known: equal blocks, no activations."""
    if parameters < 1 or layers < 1:
        raise DistdiagError(f"{parameters} parameters in {layers} layers is no model", "see --parameters and --layers")
    sizes = [parameters // layers + (number < parameters % layers) for number in range(layers)]
    blocks = [Block(weights=(Weight(name=UNKNOWN, rows=size, split=Split.ROWS),)) for size in sizes]
    return Model(name=name, blocks=tuple(blocks), origin=origin)


def _check(**numbers: int) -> None:
    for what, value in numbers.items():
        if value < 1:
            raise DistdiagError(f"{what} must be at least 1, not {value}", f"say --{what}")


def _outside(
    hidden: int, vocabulary: int, positions: int, tied: bool, layer_norm: bool
) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
    """Return the embedding and what stands behind the blocks."""
    table = Weight(name="embedding", rows=vocabulary, columns=hidden, split=Split.ROWS)
    places = [Weight(name="positions", rows=positions, columns=hidden)] if positions else []
    head = [] if tied else [Weight(name="head", rows=vocabulary, columns=hidden, split=Split.ROWS)]
    return (table, *places), (*_norms(hidden, layer_norm, "norm"), *head)


def _norms(hidden: int, layer_norm: bool, *names: str) -> list[Weight]:
    parts = ("weight", "bias") if layer_norm else ("weight",)
    return [Weight(name=f"{name}.{part}", rows=hidden) for name in names for part in parts]


def _linear(name: str, rows: int, columns: int, split: Split, bias: bool, **more: int) -> list[Weight]:
    """A linear layer; the bias of a row-parallel one is whole on every rank."""
    experts = more.get("count", 0)
    count, expert = max(experts, 1), experts > 0
    matrix = Weight(name=f"{name}.weight", rows=rows, columns=columns, split=split, count=count, expert=expert)
    cut = split if split is Split.ROWS else Split.NONE
    vector = Weight(name=f"{name}.bias", rows=rows, split=cut, count=count, expert=expert)
    return [matrix, vector] if bias else [matrix]


def _attention_weights(attention: Attention, hidden: int, bias: bool, kv_bias: bool) -> Sequence[Weight]:
    return (
        *_linear("query", attention.query_width, hidden, Split.ROWS, kv_bias),
        *_linear("key", attention.kv_width, hidden, Split.ROWS, kv_bias),
        *_linear("value", attention.kv_width, hidden, Split.ROWS, kv_bias),
        *_linear("out", hidden, attention.query_width, Split.COLUMNS, bias),
    )


def _mlp_weights(mlp: Mlp, hidden: int, bias: bool) -> Sequence[Weight]:
    names = ("gate", "up") if mlp.gated else ("up",)
    weights = [w for name in names for w in _linear(name, mlp.width, hidden, Split.ROWS, bias, count=mlp.experts)]
    weights += _linear("down", hidden, mlp.width, Split.COLUMNS, bias, count=mlp.experts)
    if mlp.experts:
        weights.append(Weight(name="router.weight", rows=mlp.experts, columns=hidden))
    if mlp.shared_width:
        for name in names:
            weights += _linear(f"shared.{name}", mlp.shared_width, hidden, Split.ROWS, bias)
        weights += _linear("shared.down", hidden, mlp.shared_width, Split.COLUMNS, bias)
    return weights
