"""Series of numbers: what jumps out of them, and what grows without end; healthy ones of real runs do neither."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.loss_spike import FACTOR, FACTOR_OF_ONE_RANK, SPREADS
from distdiag.analyzers.training.series import first_jump, steady_growth, theil_sen
from distdiag.findings import Finding, Severity
from distdiag.run import Run
from tests.logs import Logs

HEALTHY = Path(__file__).parents[4] / "shared" / "data" / "healthy_series"
MIB = 1 << 20


def losses(*, noise: float = 0.02, steps: int = 60, seed: int = 0) -> "pd.Series[float]":
    """A loss that comes down, with noise."""
    numbers = np.random.default_rng(seed)
    return pd.Series(10 * 0.97 ** np.arange(steps) * np.exp(noise * numbers.standard_normal(steps)))


# ---- jumps ----------------------------------------------------------------------------------------------------------
def test_jump_is_found_where_it_is() -> None:
    series = losses()
    series[43] = 25.0

    jump = first_jump(series, factor=1.5, spreads=10.0)

    assert jump is not None
    assert (jump.step, jump.value) == (43, 25.0)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_jump(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    scattered = pd.Series(np.exp(2 * numbers.standard_normal(500)))
    exponential = pd.Series(numbers.exponential(size=500))

    assert first_jump(losses(noise=0.3, steps=500, seed=seed), factor=1.5, spreads=10.0) is None
    assert first_jump(scattered, factor=1.5, spreads=10.0) is None
    assert first_jump(exponential, factor=1.5, spreads=10.0) is None


def test_losses_of_two_kinds_in_turn_are_no_jump() -> None:
    series = losses(steps=200)
    series[::4] *= 8

    assert first_jump(series, factor=1.5, spreads=10.0) is None


def test_losses_below_zero_are_not_judged() -> None:
    series = losses() - 5
    series[43] = 25.0

    assert first_jump(series, factor=1.5, spreads=10.0) is None


# ---- growth ---------------------------------------------------------------------------------------------------------
def grown(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", *, at_least: float = 10.0) -> bool:
    return steady_growth(np.arange(len(values), dtype=float), values, at_least=at_least, share=0.0) is not None


def test_steady_growth_has_its_slope() -> None:
    steps = np.arange(100, dtype=float)

    growth = steady_growth(steps, 500 + 2 * steps, at_least=10, share=0.05)

    assert growth is not None
    assert growth.per_step == pytest.approx(2)
    assert (growth.first_step, growth.last_step) == (20, 99)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 50), st.integers(0, 2**32 - 1))
def test_slope_withstands_a_fifth_of_wild_values(slope: float, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    x = np.arange(60, dtype=float)
    y = slope * x
    y[numbers.choice(60, 12, replace=False)] += 1e6 * numbers.standard_normal(12)

    # Of all pairs of points 64 % are whole.
    assert theil_sen(x, y) == pytest.approx(slope, rel=1e-6) or theil_sen(x, y) > 0


@pytest.mark.parametrize("seed", range(10))
def test_what_fills_up_or_scatters_does_not_grow_without_end(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    steps = np.arange(200.0)

    assert not grown(1000 + 10 * numbers.standard_normal(200))
    assert not grown(1000 * (1 - np.exp(-steps / 20)))
    assert not grown(np.where(steps < 100, 100.0, 200.0))
    assert not grown(100 + 50 * np.sin(steps / 5))
    assert grown(100 + 2 * steps + 10 * numbers.standard_normal(200))


# ---- real healthy runs ----------------------------------------------------------------------------------------------
def healthy_runs() -> list[Path]:
    return sorted(HEALTHY.glob("*.json")) if HEALTHY.is_dir() else []


def told_in(series: dict[str, Any], name: str) -> "pd.Series[float]":
    """Return the values of a series; a word stands where none was recorded."""
    return pd.to_numeric(pd.Series(series[name]["values"]), errors="coerce").dropna()


def logged(file: Path, directory: Path) -> Run:
    """Return a real run's series as two ranks would have logged them."""
    series = json.loads(file.read_text())
    logs = Logs(world_size=2)
    columns = [told_in(series, name) for name in ("lm loss", "mem-allocated-bytes", "mem-max-allocated-bytes")]
    rows = list(pd.concat(columns, axis=1).dropna().itertuples(index=False))
    for rank in logs:
        for number, (loss, memory, peak) in enumerate(rows):
            rank.all_reduce()
            time_ns = rank.now_ns
            rank.add(
                events.Numerics(step=number, time_ns=time_ns, loss=float(loss)),
                events.Memory(
                    step=number,
                    time_ns=time_ns,
                    rss_bytes=int(memory),
                    allocated_bytes=int(memory),
                    peak_allocated_bytes=int(peak),
                    reserved_bytes=int(peak),
                    alloc_retries=0,
                    device_bytes=80 << 30,
                ),
            )
            rank.end_step()
        rank.exit()
    return logs.load(directory)


@pytest.mark.parametrize("file", healthy_runs(), ids=lambda file: file.stem[:20])
def test_series_of_real_healthy_runs_alarm_nobody(file: Path, tmp_path: Path) -> None:
    report = diagnose(logged(file, tmp_path))

    assert [each for each in report.findings if each.severity is not Severity.INFO] == []
    assert [each.name for each in report.findings if each.code[:3] in ("DD4", "DD5")] == []


@pytest.mark.parametrize("file", healthy_runs(), ids=lambda file: file.stem[:20])
@pytest.mark.parametrize("rate", [FACTOR, FACTOR_OF_ONE_RANK])
def test_spike_in_a_real_loss_is_found(file: Path, rate: float) -> None:
    series = told_in(json.loads(file.read_text()), "lm loss").reset_index(drop=True)
    place = len(series) // 2
    series[place] *= 1.3 * rate

    jump = first_jump(series, factor=rate, spreads=SPREADS)

    assert jump is not None
    assert jump.step == place


# ---- memory ---------------------------------------------------------------------------------------------------------
def device(directory: Path, samples: "dict[int, list[dict[str, Any]]]", fault: str = "") -> list[Finding]:
    logs = Logs(world_size=len(samples))
    for rank in logs:
        for step, sample in enumerate(samples[rank.rank]):
            rank.all_reduce()
            rank.add(events.Memory(step=step, time_ns=rank.now_ns, device_bytes=1000 * MIB, **sample))
            rank.end_step()
        if fault and rank.rank == 1:
            rank.fault("torch.OutOfMemoryError", fault, fault="out-of-memory", where="raised")
        rank.exit()
    return [each for each in diagnose(logs.load(directory)).findings if each.code.startswith("DD4")]


def test_device_memory_that_grows_on_one_rank_is_found_with_the_steps_left(tmp_path: Path) -> None:
    found = device(
        tmp_path,
        {
            rank: [
                {
                    "allocated_bytes": (200 + 2 * step * (rank == 1)) * MIB,
                    "peak_allocated_bytes": (300 + 2 * step) * MIB,
                }
                for step in range(60)
            ]
            for rank in range(3)
        },
    )

    (finding,) = found
    assert (finding.name, finding.culprits) == ("memory-growth", (1,))
    assert "2.0 MiB a step" in finding.summary
    assert "on the other 2 it does not" in finding.summary
    assert "about 291 more steps" in finding.summary


def test_peak_near_the_size_of_the_device_is_found(tmp_path: Path) -> None:
    found = device(tmp_path, {rank: [{"peak_allocated_bytes": (950 if rank else 700) * MIB}] * 5 for rank in range(2)})

    (finding,) = found
    assert (finding.name, finding.culprits) == ("near-memory-limit", (1,))
    assert "95 %; the others are at 70 %" in finding.summary


def test_allocator_that_gives_back_its_caches_while_memory_is_free_is_found(tmp_path: Path) -> None:
    found = device(
        tmp_path,
        {
            rank: [
                {"allocated_bytes": 400 * MIB, "reserved_bytes": 900 * MIB, "alloc_retries": step // 3 * (rank == 0)}
                for step in range(9)
            ]
            for rank in range(2)
        },
    )

    (finding,) = found
    assert (finding.name, finding.culprits) == ("memory-fragmentation", (0,))
    assert "500.0 MiB of 1000.0 MiB were reserved and unused" in finding.summary


def test_request_that_would_have_fitted_in_one_piece_is_found(tmp_path: Path) -> None:
    message = (
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.00 GiB is "
        "free. Of the allocated memory 60.0 GiB is allocated by PyTorch, and 15.5 GiB is reserved by PyTorch but "
        "unallocated."
    )

    found = device(tmp_path, {rank: [{"allocated_bytes": MIB}] * 3 for rank in range(2)}, fault=message)

    (finding,) = [each for each in found if each.name == "memory-fragmentation"]
    assert finding.culprits == (1,)
    assert "15.5 GiB are reserved but unallocated, 1.50 GiB were asked for" in finding.summary
