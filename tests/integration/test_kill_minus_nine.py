"""Real ranks that are killed lose no collective that they entered."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_sigkill_loses_no_collective_entered() -> None:
    command = [sys.executable, str(ROOT / "tests/benchmarks/kill_minus_nine.py"), "--kills", "3"]

    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 lost, 0 unreadable" in result.stdout
