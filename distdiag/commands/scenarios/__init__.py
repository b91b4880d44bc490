"""Training programs of the demo: short, real, and all but one with a mistake that people make.

They are never imported: the demo copies one into the folder of its logs and starts it on four ranks.
"""

from importlib import resources

SCENARIOS = {
    "data-loader-stuck": "one rank reads a sample that never arrives",
    "rank-guarded-collective": "only rank 0 enters the all_reduce of the evaluation",
    "out-of-memory": "one rank gets a document too long for its memory",
    "shape-mismatch": "one rank reduces one number less than the others",
    "bad-sample": "one sample is not a number, and soon all ranks have no other numbers",
    "healthy": "nothing goes wrong",
}
"""Name of each scenario to what happens in it."""


def source(scenario: str) -> str:
    """Return the text of the program."""
    return resources.files(__name__).joinpath(f"{scenario.replace('-', '_')}.py").read_text(encoding="utf-8")
