"""Record ``sample_logs`` anew, with the scenarios of the demo: ``python -m tests.record_samples [SCENARIO]…``.

The logs are real; only names that belong to the machine are replaced. What each has to be found to be stands
in its ``expected.json``, which is written by hand.
"""

import shutil
import socket
import sys
from pathlib import Path

from distdiag import events
from distdiag.commands.demo import record
from distdiag.commands.scenarios import SCENARIOS

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_logs"
WORKSPACE = Path("/workspace")
"""Where the programs run, so that the logs name no folder of anybody."""
LIBRARIES = "/opt/venv/lib/python3.11/site-packages"
REPLACED = {
    str(ROOT): LIBRARIES,
    sys.prefix: "/opt/venv",
    sys.base_prefix: "/opt/python",
    socket.gethostname(): "node0",
}
LIMIT_BYTES = 60_000
"""Samples are read by people too."""


def main(scenarios: list[str]) -> None:
    for scenario in scenarios or SCENARIOS:
        WORKSPACE.mkdir()  # it must not be there: it is removed again
        try:
            record(scenario, WORKSPACE, sys.stderr)
            keep(WORKSPACE, SAMPLES / scenario)
        finally:
            shutil.rmtree(WORKSPACE)


def keep(logs: Path, sample: Path) -> None:
    """Copy the logs of all ranks, and what the interpreter left of crashes, without the machine's names."""
    for old in (*sample.glob("*.jsonl"), *sample.glob("*.txt")):
        old.unlink()
    sample.mkdir(parents=True, exist_ok=True)
    for log in sorted((*logs.glob("rank*.jsonl"), *logs.glob("rank*.crash.txt"))):
        text = log.read_bytes().rstrip(b"\0").decode()
        for name, neutral in REPLACED.items():
            text = text.replace(name, neutral)
        if text:
            (sample / log.name).write_text(text)
        if log.suffix == ".jsonl":
            for line in text.splitlines():
                events.decode(line.encode())
        assert len(text) <= LIMIT_BYTES, f"{log.name} has {len(text)} bytes"


if __name__ == "__main__":
    main(sys.argv[1:])
