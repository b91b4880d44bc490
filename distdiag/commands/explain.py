"""``distdiag explain``: the manual of a finding."""

import difflib
import inspect
from typing import TYPE_CHECKING

import click

from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    from distdiag.analyzers import Analyzer

NEAR_ENOUGH = 0.5
"""Similarity from which a name is offered instead of an unknown one; catches a typo and a missing half."""


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
    return f"{found.CODE} {found.NAME}\n\n{inspect.getdoc(found)}"


def headline(analyzer: "Analyzer") -> str:
    """Return the first line of an analyzer's manual, as a phrase."""
    return (inspect.getdoc(analyzer) or "").split("\n", 1)[0].rstrip(".")


def _analyzers() -> "list[Analyzer]":
    from distdiag.analyzers import ANALYZERS  # pandas: not for --help

    return sorted(ANALYZERS, key=lambda each: str(each.CODE))
