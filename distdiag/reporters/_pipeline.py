"""The pipeline of a run for people: how much of a step is bubble, beside what its schedule costs, and where it is."""

from collections.abc import Mapping
from typing import Any

from distdiag import wording
from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, Line, hang_all, table

LABEL = 15
INDENT = 2
MOST_STAGES = 16
SMALL = 0.1
"""A bubble that needs no advice."""
NOTABLE = 0.03
"""What is less beyond the formula is noise, and not told."""
PARTS = {
    "imbalance": "stages of different length",
    "transfers": "sending and receiving itself",
    "rest": "ranks that are late by turns, or wait for something else",
}
UNDIVIDED = "sending and receiving, or ranks that are late by turns"
"""The rest where clocks cannot tell a transfer from waiting."""


def pipeline_texts(told: Mapping[str, Any] | None) -> list[str]:
    """Return one or two sentences: the bubble and what more micro-batches would give; what it is beyond that."""
    if told is None:
        return []
    bubble = told["bubble"]
    if bubble is None:
        return [f"{_what(told)}; how much of a step is bubble these logs cannot tell: {told['why_no_bubble']}"]
    if bubble["formula"] is None:
        return [f"{_what(told)}: its stages stand idle for {_percent(bubble['measured'])} of its time"]
    first = (
        f"{_what(told)}: {_percent(bubble['measured'])} of its time is bubble, where the schedule alone has "
        f"{_percent(bubble['formula'])}{_advice(told)}"
    )
    if bubble["excess"] < NOTABLE:
        return [first]
    named = PARTS if bubble["transfers"] is not None else {**PARTS, "rest": UNDIVIDED}
    parts = [f"{_percent(bubble[name])} {what}" for name, what in named.items() if bubble[name]]
    return [first, f"{_percent(bubble['excess'])} beyond that: {', '.join(parts)}"]


def pipeline_lines(told: Mapping[str, Any] | None, width: int) -> list[Line]:
    """Return the block of a slow run's report: the sentences, and a row for each stage."""
    texts = pipeline_texts(told)
    if told is None or not texts:
        return []
    lines = hang_all("Pipeline", texts, indent=LABEL, width=width)
    if told["bubble"] is None:
        return lines
    stages = told["per_stage"][:MOST_STAGES]
    rows = [("stage", "computes", "stands idle", "bubble", "ranks")]
    rows += [
        (
            str(each["stage"]),
            words.duration(each["busy_seconds"]),
            words.duration(each["idle_seconds"]),
            f"{_percent(each['bubble'])}",
            wording.fold(each["ranks"]),
        )
        for each in stages
    ]
    return [*lines, BLANK, *table(rows, indent=INDENT, width=width, styles=["dim", *("" for _ in stages)])]


def _what(told: Mapping[str, Any]) -> str:
    """Return ``pipeline of 4 stages, 1F1B, 8 micro-batches``."""
    parts = [f"pipeline of {told['stages']} stages"]
    if told["copies"] > 1:
        parts[0] = f"{told['copies']} copies of a {parts[0]}"
    if told["why_unknown"] is None:
        parts.append(told["schedule"])
    if told["microbatches"] is not None:
        parts.append(f"{told['microbatches']} micro-batch{'es' if told['microbatches'] > 1 else ''}")
    if (told["virtual_stages"] or 1) > 1:
        parts.append(f"{told['virtual_stages']} stages a rank")
    if told["why_unknown"] is not None:
        parts.append(f"schedule unknown, because {told['why_unknown']}")
    return ", ".join(parts)


def _advice(told: Mapping[str, Any]) -> str:
    """Return what the least number of micro-batches that makes the bubble small would give."""
    if told["bubble"]["formula"] <= SMALL:
        return ""
    more = told["with_more_microbatches"]
    chosen = next((each for each in more if each["bubble"] <= SMALL), more[-1] if more else None)
    return f"; m = {chosen['microbatches']} micro-batches would give {_percent(chosen['bubble'])}" if chosen else ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
