"""Codes with which processes end: the signals behind them, and who was only told to end."""

from distdiag.importers._text.facts import Ended, Role

SIGTERM = 15
SIGKILL = 9
SIGNAL_NUMBERS = {
    "Killed": SIGKILL,
    "Terminated": SIGTERM,
    "Aborted": 6,
    "Bus error": 7,
    "Segmentation fault": 11,
    "Out Of Memory": SIGKILL,
}
"""Numbers of signals by the words of shells and of SLURM."""


def role_of(ended: Ended) -> Role:
    """Return whether an end may be the beginning: who was told to end is a victim."""
    return Role.TEARDOWN if ended.code in (-SIGTERM, 128 + SIGTERM) else Role.INITIATING
