"""The parts of the README that are generated: ``python -m tests.write_readme`` writes them anew."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from distdiag.analyzers import ANALYZERS
from tests.faults.matrix import MATRIX, VERDICTS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COMMAND = re.compile(r"(```\n\$ distdiag (analyze sample_logs/\S+)\n)(.*?)(```\n)", flags=re.DOTALL)
FINDINGS = re.compile(r"(?<=\| family \| findings \|\n\|---\|---\|\n)(\|.*?\n)*", flags=re.MULTILINE)
TRUTH = re.compile(r"(?<=\| programs \| how many \| right verdicts \|\n\|---\|---\|---\|\n)(\|.*?\n)*")
FAMILIES = {
    "DD1": "evidence",
    "DD2": "slow",
    "DD3": "stuck",
    "DD4": "memory",
    "DD5": "numerics",
    "DD6": "data",
    "DD7": "checkpoint",
}


def main() -> None:
    text = COMMAND.sub(lambda found: found[1] + printed(found[2].split()) + found[4], README.read_text(), count=1)
    text = FINDINGS.sub(lambda _: findings(), text, count=1)
    README.write_text(TRUTH.sub(lambda _: truth(), text, count=1))


def printed(arguments: list[str]) -> str:
    """Return what ``distdiag`` prints into a file or pipe, whatever the width of the present terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "distdiag", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def findings() -> str:
    """Return the rows of the table of findings, one for each family; unknown families are a ``KeyError``."""
    by_family: dict[str, list[str]] = {}
    for each in sorted(ANALYZERS, key=lambda each: each.CODE):
        by_family.setdefault(each.CODE[:3], []).append(each.NAME)
    return "".join(
        f"| {code} {FAMILIES[code]} | {' '.join(f'`{name}`' for name in names)} |\n"
        for code, names in by_family.items()
    )


def truth() -> str:
    """Return the rows of the table of verdicts against the truth, from the counts that were made last."""
    counts = json.loads(VERDICTS.read_text())
    by_family: dict[str, list[dict[str, int]]] = {}
    for fault in MATRIX:
        by_family.setdefault(fault.family, []).append(counts[fault.name])
    families = [(family, *_sums(rows)) for family, rows in by_family.items()]
    return "".join(f"| {family} | {programs} | {right} of {runs} |\n" for family, programs, runs, right in families)


def _sums(rows: Sequence[Mapping[str, int]]) -> tuple[int, int, int]:
    return len(rows), sum(row["runs"] for row in rows), sum(row["right"] for row in rows)


if __name__ == "__main__":
    main()
