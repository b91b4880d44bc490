"""A memory estimate for people and for machines: one sentence, the items, the changes, the questions in order."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TextIO

from distdiag import wording
from distdiag.memory_estimate.answer import Answer, gib
from distdiag.memory_estimate.changes import Change
from distdiag.memory_estimate.estimate import StageEstimate
from distdiag.memory_estimate.formulas import count
from distdiag.memory_estimate.recorded import Comparison, Recorded
from distdiag.reporters._lines import BLANK, Line, Span, hang, hang_all, size_of, table, wrap, write_lines

SCHEMA = "distdiag.memory/1"
MOST_CHANGES = 6
"""More is no longer a choice."""
MOST_RECORDED = 12
MOST_STAGES = 16
LABEL = 15


def render_text(answer: Answer, recorded: Comparison | None, out: TextIO) -> None:
    """Write the estimate in the width of the terminal."""
    width, _ = size_of(out)
    worst = answer.estimate.worst
    lines = _headline(answer, width)
    lines += [BLANK, *_items(worst, width)]
    if len(answer.estimate.stages) > 1:
        lines += [BLANK, *_stages(answer.estimate.stages, width)]
    if recorded is not None:
        lines += [BLANK, *_recorded(recorded, width)]
    lines += [BLANK, *_changes(answer, width), BLANK]
    for question, told in answer.questions.items():
        lines.append((Span(question, "bold"),))
        lines += [(Span("  "), Span(line)) for line in wrap(told, width - 2)]
    lines += [BLANK, *hang_all("Taken", answer.notes, indent=LABEL, width=width)]
    lines += hang_all("Sources", _sources(worst), indent=LABEL, width=width)
    write_lines(lines, out)


def _headline(answer: Answer, width: int) -> list[Line]:
    """The word, and one sentence with the number and what it is compared with."""
    base, worst = answer.estimate, answer.estimate.worst
    word, style = {True: ("FITS", "bold green"), False: ("DOES NOT FIT", "bold red"), None: ("NEEDS", "bold")}[
        answer.fits
    ]
    ranks = "one rank" if base.layout.world == 1 else f"each of {base.layout.world} ranks"
    if base.layout.pipeline > 1:
        ranks = f"a rank of stage {worst.stage}, the fullest of {base.layout.pipeline},"
    sentence = f"{base.model.name} ({count(base.model.elements)} parameters) needs {gib(worst.total_bytes)} on {ranks}"
    if answer.device_bytes is not None:
        room = answer.device_bytes - worst.total_bytes
        compared = f"{gib(abs(room))} {'less' if room >= 0 else 'more'} than the {gib(answer.device_bytes)} of a device"
        sentence += f"{'' if sentence.endswith(',') else ','} {compared}"
    most = worst.largest
    told = f"Largest: {most.item}, {most.size_bytes / worst.total_bytes:.0%}. The peak is the {worst.moment}."
    indent = " " * (len(word) + 2)
    lines = hang(f"{word}  ", wrap(sentence.rstrip(","), width - len(indent)), style=style)
    return lines + hang(indent, wrap(told, width - len(indent)))


def _items(worst: StageEstimate, width: int) -> list[Line]:
    rows = [("item", "bytes", "part", "how")]
    total = worst.total_bytes
    rows += [
        (str(line.item), gib(line.size_bytes), f"{line.size_bytes / total:.0%}", line.formula) for line in worst.lines
    ]
    rows.append(("all", gib(total), "100%", f"model states once all gradients are there: {gib(worst.states_bytes)}"))
    return table(rows, indent=2, width=width, styles=["dim", *("" for _ in worst.lines), "bold"])


def _sources(worst: StageEstimate) -> Sequence[str]:
    """Return who says so, with the items that it says."""
    by_source: dict[str, list[str]] = {}
    for line in worst.lines:
        by_source.setdefault(line.source, []).append(str(line.item))
    return [f"{', '.join(items)}: {source}" for source, items in by_source.items()]


def _stages(stages: Sequence[StageEstimate], width: int) -> list[Line]:
    """One row a stage; of very many, the fullest."""
    fullest = sorted(stages, key=lambda each: -each.total_bytes)[:MOST_STAGES]
    shown = sorted(fullest, key=lambda each: each.stage)
    rows = [("stage", "layers", "in flight", "states", "peak", "when")]
    rows += [
        (
            str(each.stage),
            str(each.layers),
            str(each.in_flight),
            gib(each.states_bytes),
            gib(each.total_bytes),
            each.moment,
        )
        for each in shown
    ]
    lines = table(rows, indent=2, width=width, styles=["dim", *("" for _ in shown)])
    if len(stages) > len(shown):
        lines.append((Span(f"  and {len(stages) - len(shown)} stages that need less", "dim"),))
    return lines


def _recorded(comparison: Comparison, width: int) -> list[Line]:
    """One row for the ranks that were in a phase and are estimated alike; what is explained least comes first."""
    alike: dict[tuple[str, str, int], list[Recorded]] = {}
    for each in comparison.rows:
        alike.setdefault((each.phase, each.measure, each.estimated_bytes), []).append(each)
    rows = [("ranks", "phase", "measured", "recorded", "estimated", "unexplained")]
    shown = sorted(alike.values(), key=lambda same: -max(abs(each.unexplained_bytes) for each in same))[:MOST_RECORDED]
    rows += [_recorded_row(same) for same in shown]
    lines = table(rows, indent=2, width=width, styles=["dim", *("" for _ in shown)])
    if len(alike) > len(shown):
        lines.append((Span(f"  and {len(alike) - len(shown)} more: --format json has them all", "dim"),))
    return lines + [(Span("  "), Span(line)) for note in comparison.notes for line in wrap(note, width - 2)]


def _recorded_row(same: Sequence[Recorded]) -> tuple[str, str, str, str, str, str]:
    least, most = (chosen(each.recorded_bytes for each in same) for chosen in (min, max))
    worst = max(same, key=lambda each: abs(each.unexplained_bytes))
    recorded = gib(most) if gib(least) == gib(most) else f"{gib(least)} to {gib(most)}"
    rest = f"{'-' if worst.unexplained_bytes < 0 else ''}{gib(abs(worst.unexplained_bytes))}"
    ranks = wording.fold(each.rank for each in same)
    beside = f" (rank {worst.rank})" if len(same) > 1 else ""
    return (ranks, worst.phase, worst.measure, recorded, gib(worst.estimated_bytes), rest + beside)


def _changes(answer: Answer, width: int) -> list[Line]:
    if not answer.changes:
        return [(Span("No single change lowers the peak by 1 % or more."),)]
    heading = "Changes, those that save most first"
    if answer.fits is False:
        if answer.changes[0].fits:
            heading = "Changes that make it fit come first, those that send least before the others"
        else:
            heading = "No single change makes it fit; those that save most first"
    shown = answer.changes[:MOST_CHANGES]
    rows: list[tuple[str, ...]] = [("change", "peak", "saves", "sends more a step", "other price")]
    rows += [_change(each, answer.device_bytes) for each in shown]
    lines = table(rows, indent=2, width=width, styles=["dim", *("" for _ in shown)])
    said = [(Span(f"    {each.option}", "dim"),) for each in shown]
    told = [line for pair in zip(lines[1:], said, strict=True) for line in pair]
    return [(Span(heading, "bold"),), lines[0], *told]


def _change(change: Change, device_bytes: int | None) -> tuple[str, ...]:
    more = change.sent_more_bytes
    sends = "nothing" if not more else f"{'-' if more < 0 else ''}{gib(abs(more))}"
    fits = "" if device_bytes is None else (" fits" if change.fits else "")
    return (change.name, f"{gib(change.peak_bytes)}{fits}", gib(change.saved_bytes), sends, change.price)


def render_json(answer: Answer, recorded: Comparison | None, out: TextIO) -> None:
    """Write the estimate as one object of ``distdiag.memory/1``; sizes are in bytes, lists are never null."""
    base = answer.estimate
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "fits": answer.fits,
        "device_bytes": answer.device_bytes,
        "peak_bytes": base.worst.total_bytes,
        "worst_stage": base.worst.stage,
        "largest_item": str(base.worst.largest.item),
        "model": {"name": base.model.name, "origin": base.model.origin, "parameters": base.model.elements},
        "layout": {**dataclasses.asdict(base.layout), "world": base.layout.world},
        "training": _training(answer),
        "stages": [_stage(each) for each in base.stages],
        "changes": [_change_fields(each) for each in answer.changes],
        "questions": dict(answer.questions),
        "sent_bytes": dict(answer.sent_bytes),
        "recorded": [
            {**dataclasses.asdict(each), "unexplained_bytes": each.unexplained_bytes}
            for each in (recorded.rows if recorded else ())
        ],
        "notes": [*answer.notes, *(recorded.notes if recorded else ())],
    }
    out.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _change_fields(change: Change) -> dict[str, Any]:
    fields = dataclasses.asdict(change)
    del fields["becomes"]  # holds functions, and is said by the option
    return fields


def _training(answer: Answer) -> dict[str, Any]:
    training = answer.estimate.training
    return {
        "sequence": training.sequence,
        "micro_batch": training.micro_batch,
        "precision": training.precision.name,
        "optimizer": training.optimizer.name,
        "recompute": training.recompute,
        "attention": training.attention,
        "loss": training.loss,
    }


def _stage(stage: StageEstimate) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "in_flight": stage.in_flight,
        "moment": stage.moment,
        "states_bytes": stage.states_bytes,
        "peak_bytes": stage.total_bytes,
        "items": [dataclasses.asdict(line) for line in stage.lines],
    }
