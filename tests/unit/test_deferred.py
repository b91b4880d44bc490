"""Libraries that take long to import: when they are."""

import subprocess
import sys
from pathlib import Path

from distdiag.deferred import deferred
from tests.dumps import Dumps
from tests.logs import Logs


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_library_is_imported_with_its_first_use() -> None:
    sys.modules.pop("colorsys", None)
    library = deferred("colorsys")
    before = "colorsys" in sys.modules

    black = library.rgb_to_hsv(0, 0, 0)

    assert (before, "colorsys" in sys.modules, black[2]) == (False, True, 0)


def test_files_are_told_apart_before_pandas_is_imported() -> None:
    loaded = run_python(
        "import sys, distdiag.importers, distdiag.remote; print(*{'pandas', 'ibis', 'duckdb'} & set(sys.modules))"
    )

    assert not loaded


def loaded_for(logs: Path) -> set[str]:
    """Return which of the libraries that take long to import a verdict needs."""
    code = (
        "import sys; from pathlib import Path; from distdiag.commands.analyze import analyze\n"
        "from distdiag.reporters import REPORTERS\n"
        "analyze(Path(sys.argv[1]), reporter=REPORTERS['json'], output=Path(sys.argv[2]))\n"
        "print(*{'pandas', 'ibis', 'duckdb'} & set(sys.modules))"
    )
    return set(run_python(code, str(logs), str(logs.parent / "report.json")).split())


def test_a_verdict_on_dumps_asks_no_database(tmp_path: Path) -> None:
    dumps = Dumps(3)
    dumps.everywhere("all_reduce")
    dumps.write(tmp_path / "dumps")

    loaded = loaded_for(tmp_path / "dumps")

    assert loaded == {"pandas"}


def test_a_verdict_on_a_hang_needs_no_library_of_expressions(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce()
    logs[0].call("all_reduce")
    (tmp_path / "logs").mkdir()
    logs.write(tmp_path / "logs")

    loaded = loaded_for(tmp_path / "logs")

    assert loaded == {"pandas", "duckdb"}
