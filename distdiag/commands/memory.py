"""``distdiag memory``: what a rank needs at its peak, before the job runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distdiag.commands import _memory_options
from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    from distdiag.memory_estimate import Estimate
    from distdiag.memory_estimate.recorded import Comparison

GIB = 1 << 30


@click.command("memory", short_help="Say what a job needs of memory, and what would lower it.")
@_memory_options.model_options
@_memory_options.layout_options
@_memory_options.training_options
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
    asked = _memory_options.Asked(given)
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
