"""The memory estimate of a job: what one rank of each pipeline stage needs at its peak, item by item."""

from collections.abc import Mapping
from dataclasses import dataclass

from distdiag.memory_estimate import formulas, layout, share, training
from distdiag.memory_estimate.formulas import Setting
from distdiag.memory_estimate.layout import Layout
from distdiag.memory_estimate.ledger import Item, Peak
from distdiag.memory_estimate.model import Model
from distdiag.memory_estimate.share import Stage, stages
from distdiag.memory_estimate.timeline import peak_of
from distdiag.memory_estimate.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of an estimate: how many bytes, how they come about, and who says so."""

    item: Item
    size_bytes: int
    formula: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """What a rank of one pipeline stage needs when it is fullest."""

    stage: int
    layers: int
    in_flight: int
    moment: str
    states_bytes: int
    """Parameters, gradients, master weights and optimizer states once all gradients are there."""
    lines: tuple[Line, ...]

    @property
    def total_bytes(self) -> int:
        """Return the sum of the lines."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def largest(self) -> Line:
        """Return the largest item."""
        return max(self.lines, key=lambda line: line.size_bytes)

    def size_of(self, *items: Item) -> int:
        """Return the bytes of some items."""
        return sum(line.size_bytes for line in self.lines if line.item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimate of a whole job, stage by stage."""

    model: Model
    layout: Layout
    training: Training
    stages: tuple[StageEstimate, ...]

    @property
    def worst(self) -> StageEstimate:
        """Return the stage whose ranks need most; of equal ones the first."""
        return max(self.stages, key=lambda stage: stage.total_bytes)


def estimate(model: Model, layout_: Layout, training_: Training) -> Estimate:
    """Return what a rank of each stage needs at its peak.

    Raises ``DistdiagError`` where sizes do not divide or contradict one another.
    """
    layout.check(layout_, model)
    training.check(
        training_, context=layout_.context, tensor=layout_.tensor, sequence_parallel=layout_.sequence_parallel
    )
    setting = Setting(model=model, layout=layout_, training=training_)
    return Estimate(
        model=model,
        layout=layout_,
        training=training_,
        stages=tuple(_stage(stage, setting) for stage in stages(layout_, model)),
    )


def _stage(stage: Stage, setting: Setting) -> StageEstimate:
    peak = peak_of(stage, setting.model, setting.layout, setting.training)
    sizes = {**peak.items, **_beside(peak, setting.training)}
    lines = [
        Line(
            item=item,
            size_bytes=sizes[item],
            formula=formulas.formula(item, sizes[item], stage, setting),
            source=formulas.source(item, setting),
        )
        for item in Item
        if sizes.get(item)
    ]
    return StageEstimate(
        stage=stage.number,
        layers=len(stage.blocks),
        in_flight=stage.in_flight,
        moment=peak.moment,
        states_bytes=_states(stage, setting),
        lines=tuple(lines),
    )


def _states(stage: Stage, setting: Setting) -> int:
    weights = share.weights_of(stage, setting.model)
    return share.held(weights, setting.layout, setting.training).total


def _beside(peak: Peak, training_: Training) -> Mapping[Item, int]:
    """Return what no tensor holds: the device's context, and the holes between the allocator's blocks."""
    return {
        Item.CONTEXT: training_.context_bytes,
        Item.FRAGMENTATION: round(peak.total * training_.fragmentation),
    }
