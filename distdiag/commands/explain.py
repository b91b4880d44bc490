"""``distdiag explain``: the manual of a finding."""

import difflib
import inspect
import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    from distdiag.analyzers import Analyzer

NEAR_ENOUGH = 0.5
"""Similarity from which a name is offered instead of an unknown one; catches a typo and a missing half."""

WIDEST = 100
"""Longer lines are hard to read."""


@click.command("explain", short_help="Print the manual of a finding, or list all of them.")
@click.argument("finding", required=False, metavar="[CODE|NAME]")
def command(finding: str | None) -> None:
    """Print the manual of a finding: what it means, how it is found, what to do.

    Without an argument, list all findings.
    """
    click.echo(overview() if finding is None else manual(finding))


def overview() -> str:
    """Return all findings, one a line."""
    analyzers = _analyzers()
    width = max(len(analyzer.NAME) for analyzer in analyzers)
    return "\n".join(f"{each.CODE}  {each.NAME:{width}}  {headline(each)}" for each in analyzers)


def manual(finding: str) -> str:
    """Return the manual of the finding with that code or name."""
    analyzers = _analyzers()
    by_key = {key: each for each in analyzers for key in (each.CODE.lower(), each.NAME)}
    wanted = finding.strip().lower()
    if wanted not in by_key:
        near = difflib.get_close_matches(wanted, by_key, n=3, cutoff=NEAR_ENOUGH)
        hint = f"did you mean {' or '.join(near)}?" if near else "distdiag explain lists all findings"
        raise DistdiagError(f"no finding called {finding}", hint)
    found = by_key[wanted]
    return f"{found.CODE} {found.NAME}\n\n{_fit(inspect.getdoc(found) or '')}"


def _fit(text: str) -> str:
    """Break the paragraphs of a manual anew for the width of the terminal; lists and code stay as they are."""
    width = min(shutil.get_terminal_size((WIDEST, 0)).columns, WIDEST)
    return "\n\n".join(_fit_block(block.split("\n"), width) for block in text.split("\n\n"))


def _fit_block(lines: list[str], width: int) -> str:
    heading = [] if lines[0].startswith(" ") else lines[:1]
    body = lines[len(heading) :]
    indents = {len(line) - len(line.lstrip()) for line in body}
    if len(indents) != 1 or any(line.lstrip().startswith(("-", "*", "$")) for line in body):
        return "\n".join(lines)
    indent = " " * indents.pop()
    filled = textwrap.fill(
        " ".join(line.strip() for line in body), width, initial_indent=indent, subsequent_indent=indent
    )
    return "\n".join([*heading, filled])


def headline(analyzer: "Analyzer") -> str:
    """Return the first line of an analyzer's manual, as a phrase."""
    return (inspect.getdoc(analyzer) or "").split("\n", 1)[0].rstrip(".")


def _analyzers() -> "list[Analyzer]":
    from distdiag.analyzers import ANALYZERS  # pandas: not for --help

    return sorted(ANALYZERS, key=lambda each: str(each.CODE))
