"""Lines of a log are damaged.

What it means
    Some lines are no records: the file was cut and joined, copied while a disk was failing, or edited. What
    stood there is lost, and the absence of a record in that log proves nothing.

How it is found
    Every line is decoded. A torn last line is not counted: a killed process leaves it, and nothing that was
    recorded before it is lost. Kinds of records that this version does not know are not counted either.

What to do
    Copy the log again from the host that wrote it. If it is damaged there too, look at that host's disk.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD102"
NAME = "logs-truncated"
MOST_FILES = 6
"""Files said one by one."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding that names the damaged logs."""
    damaged = run.quality.undecodable_lines
    if not damaged:
        return
    worst = sorted(damaged, key=lambda name: (-damaged[name], name))
    files = ", ".join(worst[:MOST_FILES]) + (f" and {len(worst) - MOST_FILES} more" if len(worst) > MOST_FILES else "")
    lines = sum(damaged.values())
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{counted(lines, 'line')} of {files} {'is' if lines == 1 else 'are'} damaged and could not be read",
        confidence=Confidence.HIGH,
        evidence=tuple(f"{name}: {counted(damaged[name], 'damaged line')}" for name in worst[:MOST_FILES]),
        action=(
            "copy these logs again from the hosts that wrote them",
            "if they are damaged there too, check the disk of that host: dmesg | grep -i 'i/o error'",
        ),
    )
