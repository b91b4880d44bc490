"""``distdiag memory``: what a rank needs at its peak, before the job runs."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distdiag.errors import DistdiagError
from distdiag.memory_estimate import (
    OPTIMIZERS,
    PRECISIONS,
    AttentionKind,
    Layout,
    Loss,
    Model,
    Recompute,
    Schedule,
    Sharding,
    Training,
    opaque,
    read_config,
    transformer,
)

if TYPE_CHECKING:
    from distdiag.memory_estimate import Estimate
    from distdiag.memory_estimate.recorded import Comparison

Command = TypeVar("Command", bound=Callable[..., object])
GIB = 1 << 30
FULLEST = 0.92
"""Part of a device above which a job is near its limit: holes between blocks, and peaks of single steps."""
CONTEXT_GIB = 1.0
"""Taken for CUDA's context and NCCL's buffers together; nvidia-smi shows a process's own."""
SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


class _Number(click.ParamType[int]):
    """A count like ``7500000000``, ``7.5e9`` or ``7.5b``."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().lower()
        factor = SUFFIXES.get(text[-1:], 1.0)
        try:
            number = float(text[:-1] if factor != 1 else text) * factor
        except ValueError:
            self.fail(f"{value!r} is no number like 7.5e9 or 7.5b", param, ctx)
        if not 1 <= number < 1e18:
            self.fail(f"{value!r} is no number of parameters", param, ctx)
        return round(number)


def _added(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _count(flag: str, text: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(flag, type=click.IntRange(min=1), metavar="N", help=text, **more)


def _size(flag: str, name: str, text: str) -> Callable[[Command], Command]:
    """An option for how many ranks share something, or how often something is done."""
    return click.option(flag, name, type=int, default=1, show_default=True, metavar="N", help=text)


def _choice(flag: str, name: str, choices: Any, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        flag, name, type=click.Choice([str(each) for each in choices]), default=default, show_default=True, help=text
    )


model_options = _added(
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="config.json of the model."),
    click.option("--module", metavar="FILE.py:FUNCTION", help="Function that builds the model, with example inputs."),
    click.option("--parameters", type=_Number(), metavar="N", help="All that is known of the model: 7.5e9, 70b."),
    _count("--layers", "Layers."),
    _count("--hidden", "Width of the stream between the layers."),
    _count("--heads", "Attention heads."),
    _count("--kv-heads", "Heads of keys and values, where fewer."),
    _count("--head-size", "Width of a head, where it is not hidden / heads."),
    _count("--width", "Width of the MLP (default: 4 · hidden)."),
    _count("--vocabulary", "Rows of the embedding."),
    click.option("--gated", is_flag=True, help="The MLP has a gate (SwiGLU), and there are no biases."),
    click.option("--tied", is_flag=True, help="The head is the embedding."),
    click.option("--dropout", is_flag=True, help="Dropout is on, and keeps masks."),
    click.option("--experts", type=int, default=0, metavar="N", help="Experts of a layer."),
    click.option("--experts-per-token", type=int, default=2, show_default=True, metavar="N", help="Routed to."),
)


layout_options = _added(
    _size("--dp", "data", "Data-parallel ranks."),
    click.option("--zero", type=click.IntRange(0, 3), metavar="STAGE", help="ZeRO 1: states, 2: gradients, 3: all."),
    click.option("--whole-tensors", is_flag=True, help="ZeRO 1 deals out whole tensors (ZeroRedundancyOptimizer)."),
    click.option("--fsdp", is_flag=True, help="fully_shard on each layer and on the model."),
    _size("--replicas", "replicas", "Hybrid sharding: groups that each hold all shards."),
    click.option(
        "--reshard-after-forward/--no-reshard-after-forward",
        "reshard_after_forward",
        default=True,
        show_default=True,
        help="Layers are let go between forward and backward.",
    ),
    _size("--tp", "tensor", "Tensor-parallel ranks."),
    click.option("--sp", "sequence_parallel", is_flag=True, help="Sequence parallelism, on the ranks of --tp."),
    _size("--cp", "context", "Context-parallel ranks: ring attention, or Ulysses."),
    _size("--pp", "pipeline", "Pipeline ranks."),
    _choice("--schedule", "schedule", Schedule, "1f1b", "Order of the micro-batches in the pipeline."),
    _size("--chunks", "chunks", "Parts of the model on each pipeline rank."),
    _size("--micro-batches", "micro_batches", "Micro-batches of a rank in a step."),
    _size("--ep", "expert", "Ranks that share the experts, out of --dp and --cp."),
)


training_options = _added(
    click.option("--sequence", type=int, default=0, metavar="TOKENS", help="Tokens of a sample."),
    _size("--micro-batch", "micro_batch", "Samples in a micro-batch."),
    _choice("--precision", "precision", PRECISIONS, "mixed", "Number formats."),
    _choice("--optimizer", "optimizer", OPTIMIZERS, "adam", "Optimizer."),
    _choice("--recompute", "recompute", Recompute, "none", "Activation checkpointing."),
    _choice("--attention", "attention", AttentionKind, "flash", "Whether the scores are kept."),
    _choice("--loss", "loss", Loss, "standard", "What becomes of the logits."),
    click.option("--bucket-views", is_flag=True, help="DDP's gradient_as_bucket_view."),
    click.option("--gathered-inputs", is_flag=True, help="With --sp: linear layers keep gathered inputs (DTensor)."),
    click.option("--context-gib", type=float, metavar="GIB", help="Device's context (1 where a device is given)."),
    click.option("--fragmentation", type=float, metavar="PART", help="Margin (0.087: the device at most 92 % full)."),
)


class Asked:
    """What the options of one call describe."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def model(self) -> Model:
        """Return the model; raise ``DistdiagError`` where it is described twice, or not at all."""
        given = self._given
        ways = [name for name in ("config", "module", "parameters", "hidden") if given[name] is not None]
        if len(ways) != 1:
            said = " and ".join(f"--{name}" for name in ways)
            raise DistdiagError(
                f"the model is described twice, by {said}" if ways else "no model is described",
                "say one of --config, --module, --parameters and --hidden",
            )
        if given["config"] is not None:
            return read_config(given["config"])
        if given["module"] is not None:
            from distdiag.commands import _meta_model

            fused = given["attention"] == AttentionKind.FLASH
            return _meta_model.build(given["module"], fused_attention=fused)
        if given["parameters"] is not None:
            return self._opaque()
        return self._transformer()

    def _opaque(self) -> Model:
        layers = self._given["layers"]
        if layers is None and self._sharding().stage == 3:
            raise DistdiagError(
                "where parameters are sharded, a layer is gathered to compute: how large is it?", "say --layers"
            )
        return opaque(self._given["parameters"], layers or 1)

    def _transformer(self) -> Model:
        given = self._given
        missing = [name for name in ("layers", "heads", "vocabulary") if given[name] is None]
        if missing:
            raise DistdiagError(f"{' and '.join(missing)} of the model are not known", f"say --{' --'.join(missing)}")
        return transformer(
            layers=given["layers"],
            hidden=given["hidden"],
            heads=given["heads"],
            kv_heads=given["kv_heads"],
            head_size=given["head_size"],
            width=given["width"],
            vocabulary=given["vocabulary"],
            gated=given["gated"],
            bias=not given["gated"],
            layer_norm=not given["gated"],
            tied=given["tied"],
            dropout=given["dropout"],
            experts=given["experts"],
            per_token=given["experts_per_token"] if given["experts"] else 1,
        )

    def layout(self) -> Layout:
        """Return how the job lies over its ranks."""
        given = self._given
        return Layout(
            sharding=self._sharding(),
            schedule=Schedule(given["schedule"]),
            **{
                name: given[name]
                for name in (
                    *("data", "replicas", "reshard_after_forward", "tensor", "sequence_parallel", "context"),
                    *("pipeline", "chunks", "micro_batches", "expert"),
                )
            },
        )

    def _sharding(self) -> Sharding:
        zero, fsdp, whole = (self._given[name] for name in ("zero", "fsdp", "whole_tensors"))
        if fsdp and zero is not None:
            raise DistdiagError("the model cannot be sharded by --fsdp and by --zero", "--fsdp is stage 3 of its own")
        if whole and zero != 1:
            raise DistdiagError("--whole-tensors is a way of ZeRO 1", "say --zero 1 --whole-tensors")
        if fsdp:
            return Sharding.FSDP
        if whole:
            return Sharding.ZERO_1_TENSORS
        return (Sharding.DDP, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)[zero or 0]

    def training(self, *, on_device: bool) -> Training:
        """Return how it is trained; a device has a context and needs a margin, unless they are given."""
        given = self._given
        context = given["context_gib"] if given["context_gib"] is not None else (CONTEXT_GIB if on_device else 0.0)
        margin = given["fragmentation"]
        if context < 0:
            raise DistdiagError(f"a context of {context} GiB is none", "see --context-gib")
        return Training(
            sequence=given["sequence"],
            micro_batch=given["micro_batch"],
            precision=PRECISIONS[given["precision"]],
            optimizer=OPTIMIZERS[given["optimizer"]],
            recompute=Recompute(given["recompute"]),
            attention=AttentionKind(given["attention"]),
            loss=Loss(given["loss"]),
            bucket_views=given["bucket_views"],
            keeps_gathered_sequence=given["gathered_inputs"],
            context_bytes=round(context * GIB),
            fragmentation=margin if margin is not None else (1 / FULLEST - 1 if on_device else 0.0),
        )


@click.command("memory", short_help="Say what a job needs of memory, and what would lower it.")
@model_options
@layout_options
@training_options
@click.option("--device-gib", type=float, metavar="GIB", help="Memory of one device: does the job fit?")
@click.option("--per-node", type=int, default=8, show_default=True, metavar="N", help="Devices that share fast links.")
@click.option(
    "--logs",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Put the peaks that a run recorded beside the estimate.",
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def command(device_gib: float | None, per_node: int, logs: Path | None, form: str, **given: Any) -> int:
    """Say what one rank of a job needs of memory at its peak, item by item, and what would lower it.

    The model comes from a config.json as transformers writes it, from numbers, or from a Python function that
    builds it on the meta device (--module file.py:make; with example inputs, its activations are counted too).

    \b
    distdiag memory --config config.json --sequence 8192 --dp 64 --fsdp --device-gib 80
    distdiag memory --parameters 7.5e9 --dp 64 --zero 2
    distdiag memory --module model.py:make --dp 8 --logs distdiag_logs

    Exit code: 0 it fits (or no device was given), 1 it does not, 2 bad usage.
    """
    from distdiag.memory_estimate import answer, estimate
    from distdiag.reporters.memory import render_json, render_text

    if per_node < 1 or (device_gib is not None and device_gib <= 0):
        raise DistdiagError("a device and a node hold something", "see --device-gib and --per-node")
    asked = Asked(given)
    base = estimate(asked.model(), asked.layout(), asked.training(on_device=device_gib is not None))
    device_bytes = None if device_gib is None else round(device_gib * GIB)
    answered = answer(base, device_bytes=device_bytes, per_node=per_node)
    beside = _compared(logs, base) if logs is not None else None
    (render_json if form == "json" else render_text)(answered, beside, sys.stdout)
    return 1 if answered.fits is False else 0


def _compared(logs: Path, base: "Estimate") -> "Comparison":
    from distdiag.importers import load  # pandas and duckdb: not for an estimate alone
    from distdiag.memory_estimate.recorded import compare

    comparison = compare(load(logs), base)
    if not comparison.rows:
        raise DistdiagError(f"no memory was recorded in {logs}", "recording samples it at every step of a run")
    return comparison
