"""Several runs below one folder: the verdict on each in a line, and the command that tells more."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distdiag.findings import Verdict
from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, Line, Span, wrap
from distdiag.reporters.text import first_sentence

LABEL = 16
REFUSED = "UNREADABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One run, and its verdict; None where it could not be analysed."""

    folders: Sequence[Path]
    verdict: Verdict | None
    refusal: str = ""


def compose(where: str, runs: Iterable[Surveyed], *, total: int, width: int) -> list[Line]:
    """Return the lines of a survey of ``total`` runs, of which some were analysed."""
    surveyed = list(runs)
    shown = "" if len(surveyed) == total else f", the {len(surveyed)} newest of them analysed"
    lines: list[Line] = [(Span(f"{total} runs in {where}{shown}, the newest first", "bold"),)]
    for run in surveyed:
        word = words.headline(run.verdict.name, run.verdict.code) if run.verdict is not None else REFUSED
        said = first_sentence(run.verdict.summary) if run.verdict is not None else run.refusal
        command = f"distdiag analyze {shlex.join(map(str, run.folders))}"
        lines += [BLANK, (Span(f"{word:<{LABEL}}", words.colour(word)), Span(command))]
        lines += [(Span(" " * LABEL), Span(line)) for line in wrap(said, width - LABEL)]
    return lines
