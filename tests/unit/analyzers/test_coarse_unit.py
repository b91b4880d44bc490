"""FSDP units by what they gather: one that holds most of the model is told where memory says that it matters."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Finding, Severity
from tests.logs import Logs

GIB = 1 << 30
FLOATS = 1 << 28
"""In a gibibyte."""


def sharded(units: Mapping[str, float], *, peak: float, device: float = 80.0, oom: bool = False) -> Logs:
    """Two ranks that gather units of so many gibibytes."""
    logs = Logs(world_size=2)
    for log in logs:
        for _ in range(5):
            for unit, gibibytes in units.items():
                shape = (round(gibibytes * FLOATS) // 2,)
                log.call("all_gather_into_tensor", "train.py:20 step", shape=shape, module=unit)
            log.add(
                events.Memory(
                    step=log.step,
                    time_ns=log.now_ns,
                    peak_allocated_bytes=round(peak * GIB),
                    device_bytes=round(device * GIB),
                )
            )
            log.end_step()
        if oom:
            log.fault("torch.OutOfMemoryError", "CUDA out of memory.", "model.py:9 grow", fault="out-of-memory")
        log.exit()
    return logs


def found_in(logs: Logs, directory: Path) -> list[Finding]:
    return [each for each in diagnose(logs.load(directory)).findings if each.name == "coarse-unit"]


def test_a_unit_that_holds_most_of_the_model_is_told(tmp_path: Path) -> None:
    (finding,) = found_in(sharded({"root": 12.0, "layers.0": 2.0}, peak=40.0), tmp_path)

    assert finding.summary == (
        "FSDP unit root, one of 2 units, gathers 12.00 GiB: 86 % of the sharded model, 30 % of the 40.00 GiB that the "
        "device uses at most"
    )
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(("peak", "oom"), [(72.0, False), (40.0, True)])
def test_where_memory_is_short_it_is_a_warning(tmp_path: Path, peak: float, oom: bool) -> None:
    (finding,) = found_in(sharded({"root": 12.0, "layers.0": 2.0}, peak=peak, oom=oom), tmp_path)

    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    "units",
    [
        {"root": 2.0, **{f"layers.{number}": 1.0 for number in range(8)}},
        {"root": 4.0},
        {"root": 0.03, "layers.0": 0.001},
    ],
    ids=["blocks", "little of the memory", "small"],
)
def test_other_units_are_right(tmp_path: Path, units: Mapping[str, float]) -> None:
    assert found_in(sharded(units, peak=0.1 if len(units) == 2 else 40.0), tmp_path) == []


def test_without_any_reading_of_memory_nothing_is_told(tmp_path: Path) -> None:
    logs = sharded({"root": 12.0}, peak=40.0)
    for log in logs:
        log.records = [record for record in log.records if not isinstance(record, events.Memory)]

    assert found_in(logs, tmp_path) == []
