"""How ranks, durations and verdicts are written for people."""

HEADLINES = {
    "healthy": "HEALTHY",
    "insufficient-evidence": "CANNOT TELL",
    "rank-died": "DIED",
    "late-rank": "LATE",
    "out-of-memory": "OUT OF MEMORY",
    "op-mismatch": "DIVERGED",
    "shape-mismatch": "DIVERGED",
    "dtype-mismatch": "DIVERGED",
    "split-mismatch": "DIVERGED",
    "root-mismatch": "DIVERGED",
    "sequence-divergence": "DIVERGED",
    "group-mismatch": "DIVERGED",
    "uneven-batches": "DIVERGED",
    "skipped-steps": "DIVERGED",
}
"""What happened in a word, where a finding is not like the rest of its family."""

FAMILIES = {
    "DD1": "INCOMPLETE",
    "DD2": "SLOW",
    "DD3": "STUCK",
    "DD4": "MEMORY",
    "DD5": "SILENTLY WRONG",
    "DD6": "SILENTLY WRONG",
    "DD7": "CHECKPOINT",
}

COLOURS = {"HEALTHY": "bold green", "SLOW": "bold yellow", "INCOMPLETE": "bold yellow", "CANNOT TELL": "bold yellow"}


def headline(name: str, code: str | None) -> str:
    """Return the word that a verdict begins with."""
    return HEADLINES.get(name) or FAMILIES.get((code or "")[:3], "FOUND")


def colour(word: str) -> str:
    """Return the style of that word."""
    return COLOURS.get(word, "bold red")


def duration(seconds: float) -> str:
    """Write a duration in the unit that a person would choose."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1000:
        return f"{seconds:.1f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
