"""The parts of the README that are generated: ``python -m tests.write_readme`` writes them anew."""

import os
import re
import subprocess
import sys
from pathlib import Path

from distdiag.analyzers import ANALYZERS
from distdiag.commands.explain import headline

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COMMAND = re.compile(r"(```\n\$ distdiag (analyze sample_logs/\S+)\n)(.*?)(```\n)", flags=re.DOTALL)
FINDINGS = re.compile(r"(?<=\|---\|---\|---\|\n)(\| DD.*?\n)*(?=\n## Support)", flags=re.DOTALL)


def main() -> None:
    text = COMMAND.sub(lambda found: found[1] + printed(found[2].split()) + found[4], README.read_text(), count=1)
    README.write_text(FINDINGS.sub(lambda _: findings(), text, count=1))


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
    """Return the rows of the table of findings."""
    analyzers = sorted(ANALYZERS, key=lambda each: each.CODE)
    return "".join(f"| {each.CODE} | `{each.NAME}` | {headline(each)} |\n" for each in analyzers)


if __name__ == "__main__":
    main()
