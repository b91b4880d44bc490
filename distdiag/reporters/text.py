"""The report for people: the verdict first, then who, where and since when, then what to do."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from distdiag import wording
from distdiag.findings import Finding, Position, Report, Verdict
from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, GAP, Line, Span, hang, hang_all, plain, size_of, table, wrap, write_lines
from distdiag.reporters._performance import ledger_lines, profile_lines, what_if_line, what_if_lines
from distdiag.reporters._pipeline import pipeline_lines, pipeline_texts
from distdiag.reporters._stacks import stack_lines

SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])|\n+")
"""A full stop ends a sentence only before a capital: lines of code have full stops too."""
GROUP = re.compile(r" of group (\S+)")
"""Worth its place in a table only where there are several."""
WHOLENESS = re.compile(r"\d+ of \d+ logs")
"""How whole the logs are is a reason for the confidence, and stands beside it instead of in the evidence."""
PACE = "Computing"
"""How the question of the triage begins that is worth an answer in a healthy run too."""
LABEL = 15
"""Width of the labels that stand before a paragraph."""
MOST_ROWS = 12
"""Rows of ranks that are shown: more than that is no longer seen at a glance."""
UNBOUNDED = 10_000
MEASURED, SLOW = "operations", "DD2"
"""Source of simulations, and family of findings, that are told of in the text."""
LEAST_HEADLINE = 60
"""Columns that the code of the finding must leave to the headline's first line."""


def render(report: Report, out: TextIO) -> None:
    """Write ``report`` in the width of the terminal, in colour where there is one."""
    width, height = size_of(out)
    write_lines(compose(report, width=width, height=height), out)


def compose(report: Report, *, width: int, height: int) -> list[Line]:
    """Return the lines of ``report``; the verdict is said again at the end if it has scrolled away by then."""
    if report.verdict.name == "healthy":
        profiles = profile_lines(report.performance.get("profiler", ()), width)
        return _healthy(report, width) + _others(report, width) + ([BLANK, *profiles] if profiles else [])
    blocks = (
        _attempts(report, width),
        _ledger(report, width) or _ranks(report, width),
        _before(report.positions, width) + _why(report.verdict, width),
        hang_all("Do next", report.verdict.next_steps, indent=LABEL, width=width, numbered=True),
        stack_lines(report.stacks, width),
        _others(report, width),
        profile_lines(report.performance.get("profiler", ()), width),
        _pipeline(report, width),
        what_if_lines(_simulations(report), width),
        _triage(report.triage, width),
    )
    lines = _verdict(report, width)
    for block in filter(None, blocks):
        lines += [BLANK, *block]
    if len(lines) >= height:
        lines += [BLANK, *_headline(report.verdict, width)]
    return lines


def _headline(verdict: Verdict, width: int) -> list[Line]:
    """The word, the first sentence and, at the right, the code of the finding."""
    word = words.headline(verdict.name, verdict.code)
    label = f"{verdict.code} {verdict.name}" if verdict.code else ""
    room = width - len(word) - GAP
    beside = room - len(label) - GAP
    if beside < LEAST_HEADLINE:
        beside, label = room, ""
    lines = hang(f"{word}{' ' * GAP}", wrap(_split(verdict.summary)[0], room, first=beside), style=words.colour(word))
    if label:
        gap = " " * (width - len(plain(lines[0])) - len(label))
        lines[0] = (*lines[0], Span(gap), Span(label, "dim"))
    elif verdict.code:
        lines.append((Span(" " * (len(word) + GAP)), Span(f"{verdict.code} {verdict.name}", "dim")))
    return lines


def _verdict(report: Report, width: int) -> list[Line]:
    verdict = report.verdict
    indent = " " * (len(words.headline(verdict.name, verdict.code)) + GAP)
    lines = _headline(verdict, width)
    for paragraph in _split(verdict.summary)[1]:
        lines += hang(indent, wrap(paragraph, width - len(indent)))
    wholeness = [reason for reason in verdict.evidence if WHOLENESS.match(reason)]
    confidence = f"confidence {verdict.confidence}{': ' if wholeness else ''}{'; '.join(wholeness)}"
    return lines + [(Span(indent), Span(line, "dim")) for line in wrap(confidence, width - len(indent))]


def _healthy(report: Report, width: int) -> list[Line]:
    """Three lines: that nothing happened, where the time went, and how much of it the logs tell."""
    first, *rest = _verdict(report, width)
    indent = " " * (len(words.headline(report.verdict.name, None)) + GAP)
    pace = [answer for question, answer in report.triage.items() if question.startswith(PACE)]
    pace += [line] if (line := what_if_line(_simulations(report))) else []
    pace += pipeline_texts(report.performance.get("pipeline"))
    pace += _goodput(report)
    return [first, *(line for answer in pace for line in hang(indent, wrap(answer, width - len(indent)))), *rest]


def _goodput(report: Report) -> list[str]:
    """Return what of a job's attempts was kept and what was lost, if it was started anew."""
    told = (report.goodput or {}).get("summary")
    return told.splitlines() if told else []


def _attempts(report: Report, width: int) -> list[Line]:
    return hang_all("Attempts", _goodput(report), indent=LABEL, width=width)


def _simulations(report: Report) -> Mapping[str, Any] | None:
    """Return what was simulated, where the report is of measured operations or of a slow run."""
    told: Mapping[str, Any] | None = report.performance.get("what_if")
    asked = told is not None and (told["source"] == MEASURED or (report.verdict.code or "").startswith(SLOW))
    return told if asked else None


def _ledger(report: Report, width: int) -> list[Line]:
    """Return where the steps of a slow run go: all its ranks are at the same place, the end."""
    slow = (report.verdict.code or "").startswith(SLOW)
    return ledger_lines(report.performance.get("ranks", ()), report.verdict.culprits, width) if slow else []


def _pipeline(report: Report, width: int) -> list[Line]:
    """Return how much of a slow run's steps its pipeline stands idle."""
    slow = (report.verdict.code or "").startswith(SLOW)
    return pipeline_lines(report.performance.get("pipeline"), width) if slow else []


def _split(summary: str) -> tuple[str, list[str]]:
    """Split a summary: its first sentence is the headline, which takes no full stop."""
    headline, *rest = SENTENCE_END.split(summary.strip(), maxsplit=1)
    return headline.rstrip("."), rest


def first_sentence(summary: str) -> str:
    """Return what the headline of a verdict says."""
    return _split(summary)[0]


def _ranks(report: Report, width: int) -> list[Line]:
    """One row for all ranks that are at the same place: who, where, since when; the culprits come first."""
    culprits, positions = report.verdict.culprits, report.positions
    alike: dict[tuple[str, ...], list[Position]] = {}
    one_group = len({name for position in positions for name in GROUP.findall(position.doing)}) == 1
    for position in sorted(positions, key=lambda each: (each.rank not in culprits, each.rank)):
        step = "" if position.step is None else str(position.step)
        doing = GROUP.sub("", position.doing) if one_group else position.doing
        place = (step, position.phase or "", wording.basename(position.where or ""), doing)
        alike.setdefault(("bold" if position.rank in culprits else "", *place), []).append(position)
    rows: list[tuple[str, ...]] = [("ranks", "step", "phase", "where it is", "doing", "since")]
    rows += [(wording.fold(each.rank for each in same), *place, _since(same)) for (_, *place), same in alike.items()]
    styles = ["dim", *(style for style, *_ in alike)]
    if missing := report.data_quality.get("missing_ranks"):
        rows.append((wording.fold(missing), "", "", "", "left no log", ""))
        styles.append("")
    return _table(rows, styles, width) if len(rows) > 1 else []


def _table(rows: list[tuple[str, ...]], styles: list[str], width: int) -> list[Line]:
    left_out = len(rows) - 1 - MOST_ROWS
    rows, styles = rows[: MOST_ROWS + 1], styles[: MOST_ROWS + 1]
    lines = table(rows, indent=2, width=UNBOUNDED, styles=styles)
    if max(len(plain(line)) for line in lines) > width:  # the name of the function is what can be spared first
        rows[1:] = [(*row[:3], row[3].split(" ")[0], *row[4:]) for row in rows[1:]]
        lines = table(rows, indent=2, width=width, styles=styles)
    if left_out > 0:
        lines.append((Span(f"  and {left_out} more places: --format json has them all", "dim"),))
    return lines


def _since(positions: Iterable[Position]) -> str:
    known = [each.since_seconds for each in positions if each.since_seconds is not None]
    return words.duration(max(known)) if known else ""


def _before(positions: Iterable[Position], width: int) -> list[Line]:
    last: dict[str, list[int]] = {}
    for position in positions:
        if position.last:
            last.setdefault(wording.basename(position.last), []).append(position.rank)
    shown = [f"{wording.named(ranks)} completed {call}" for call, ranks in sorted(last.items(), key=_first_rank)]
    return hang_all("Before that", shown[:MOST_ROWS], indent=LABEL, width=width)


def _first_rank(call: tuple[str, list[int]]) -> int:
    return min(call[1])


def _why(verdict: Verdict, width: int) -> list[Line]:
    evidence = [reason for reason in verdict.evidence if not WHOLENESS.match(reason)]
    lines = hang_all("Evidence", evidence, indent=LABEL, width=width)
    places: dict[str, list[int]] = {}
    for rank, site in verdict.sites.items():
        places.setdefault(site, []).append(rank)
    if verdict.site and verdict.site not in places:
        places = {verdict.site: list(verdict.culprits), **places}
    sites = [f"{site}  {wording.named(ranks)}" if ranks else site for site, ranks in places.items()]
    sites.sort(key=lambda line: not line.startswith(f"{verdict.site} "))
    return lines + hang_all("Look at", sites[:MOST_ROWS], indent=LABEL, width=width)


def _others(report: Report, width: int) -> list[Line]:
    verdict = report.verdict
    others = [each for each in report.findings if (each.code, each.summary) != (verdict.code, verdict.summary)]
    return hang_all("Also found", map(_one_line, others), indent=LABEL, width=width)


def _one_line(finding: Finding) -> str:
    return f"{finding.code} {finding.name}: {' '.join(finding.summary.split())}"


def _triage(triage: Mapping[str, str], width: int) -> list[Line]:
    """The questions that people who hunt such failures ask, in their order, with what the logs answer."""
    lines: list[Line] = []
    for question, answer in triage.items():
        lines.append((Span(question, "bold"),))
        for line in wrap(answer, width - 2):
            lines.append((Span("  "), Span(line)))
    return lines
