"""Programs on real ranks that end well and are wrong, and healthy training of many kinds."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag.findings import Finding, Report, Severity
from tests.faults.runs import Fault, Runs, selected

FAULTS = Path(__file__).parents[1] / "faults"
BESIDE = Path(__file__).parents[3] / "shared" / "faults"


def _fault(
    name: str, verdict: str, step: int, *culprits: int, ranks: int = 3, file: str = "silent", **more: Any
) -> tuple[Fault, int]:
    worker = FAULTS / f"{file}.py"
    return Fault(name=name, worker=worker, ranks=ranks, verdicts=(verdict,), culprits=culprits, **more), step


SILENT: Mapping[Fault, int] = dict(
    (
        _fault("value_in_input", "non-finite", 4, 1, cause="batch"),
        _fault("value_in_layer", "non-finite", 3, 2, cause="inside", mentions="that of module 2; what it was given"),
        _fault("value_in_backward", "non-finite", 3, 0, mentions="the gradient of rank 0"),
        _fault("value_left_out", "non-finite", 3, 1, cause="batch", mentions="that of module 0; what it was given was"),
        _fault("spike", "loss-spike", 32),
        _fault("spike_of_one", "loss-spike", 32, 2),
        _fault("scales_differ", "loss-scale-divergence", 0, 1, mentions="Replicas differ from step 1 on"),
        _fault("never_averaged", "missing-gradient-sync", 0, cause="no_sync", mentions="8 of 8 steps"),
        _fault("last_pass_alone", "missing-gradient-sync", 0, cause="no_sync", mentions="6 of 6 steps"),
        _fault("wrapper_bypassed", "missing-gradient-sync", 2, cause="bypassed", mentions="6 of 8 steps"),
        _fault("flipped_bit", "replica-desync", 3, 2, mentions="One of 4 parameters differs: 2.weight"),
        _fault("rates_differ", "replica-desync", 1, 0, mentions="4 of 4 parameters differ, first 0.weight"),
        _fault("seeded_apart", "replica-desync", 0, mentions="whose gradients the script averages by itself"),
        _fault("seeded_apart_flat", "replica-desync", 0, mentions="4 of 4 parameters differ, first 0 (16x8)"),
        _fault("same_shuffle", "duplicate-samples", 0, cause="same-order"),
        _fault("own_shuffles", "duplicate-samples", 0, cause="overlap"),
        _fault("same_share", "duplicate-samples", 0, 0, 1, mentions="Both take share 0 of 3"),
        _fault("seeds_differ", "unsynchronised-seeds", 0, 2, cause="seed"),
        _fault("one_more_batch", "uneven-batches", 10, 1),
        _fault("stream_undivided", "duplicate-samples", 0, file="unusual", cause="same-order", mentions="iterable"),
        _fault("workers_undivided", "duplicate-samples", 0, file="unusual", ranks=2, cause="same-workers"),
        _fault(
            "divided_and_apart", "missing-gradient-sync", 0, file="unusual", ranks=2, mentions="replicas stay equal"
        ),
        _fault("redrawn", "replica-desync", 8, file="unusual", mentions="One of 4 parameters differs: 2.weight"),
        _fault("layer_added", "replica-desync", 1, file="unusual", cause="added-later"),
        _fault("shards_seeded_apart", "replica-desync", 0, file="unusual", ranks=4, mentions="the shards on ranks 0,2"),
        _fault("value_in_shards", "non-finite", 5, 1, file="unusual", cause="batch"),
        _fault("leak", "host-memory-growth", -1, 1, ranks=2),
    )
)
APART = tuple(fault for fault in SILENT if fault.verdicts == ("replica-desync",))
CONTROLS = tuple(
    Fault(name=name, worker=FAULTS / f"{file}.py", ranks=ranks, verdicts=("healthy",))
    for file, programs in {
        "unusual": {
            "healthy_endless": 2,
            "healthy_weighted": 2,
            "healthy_local_steps": 2,
            "healthy_own_head": 2,
            "healthy_replicated_shards": 4,
        },
        "trained": {
            "healthy_plain": 3,
            "healthy_accumulation": 3,
            "healthy_scaler": 2,
            "healthy_zero": 2,
            "healthy_norm": 2,
            "healthy_unused": 2,
            "healthy_compressed": 2,
            "healthy_averaged_by_hand": 2,
            "healthy_own_heads": 2,
            "healthy_elastic": 2,
            "healthy_own_shares": 2,
            "healthy_two_models": 2,
            "healthy_frozen": 2,
            "healthy_sharded": 2,
            "healthy_tensor_parallel": 4,
            "healthy_context_parallel": 2,
            "healthy_sampler": 2,
            "healthy_shares": 2,
            "healthy_evaluation": 2,
            "healthy_stream": 2,
            "healthy_noise": 2,
            "healthy_cache": 2,
            "healthy_losses_said": 3,
            "healthy_masks": 2,
        },
    }.items()
    for name, ranks in programs.items()
)
BESIDE_THE_PROJECT = (
    [
        Fault(
            name="loss_scale",
            worker=BESIDE / "worker.py",
            ranks=wanted["nproc"],
            verdicts=tuple(wanted["verdict"]),
            culprits=(0,),
        )
        for wanted in [json.loads((BESIDE / "expected.json").read_text())["loss_scale"]]
    ]
    if BESIDE.is_dir()
    else []
)
MENTIONED = Fault(name="head_outside", worker=FAULTS / "unusual.py", ranks=2, verdicts=("healthy",))
"""Wrong or meant so: who looks is told, and nobody is accused."""
ANY_STEP = -1


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    programs = selected((*SILENT, *CONTROLS, MENTIONED, *BESIDE_THE_PROJECT), request.session.items)
    started = Runs(tmp_path_factory.mktemp("silent"), programs)
    yield started
    started.close()


@pytest.mark.parametrize("fault", SILENT, ids=lambda fault: fault.name)
def test_silent_fault_is_found_with_its_rank_and_step(fault: Fault, runs: Runs) -> None:
    report = runs.outcome(fault).report

    (found,) = serious(report)
    assert (found.name, found.culprits, found.cause) == (fault.verdicts[0], fault.culprits, fault.cause or found.cause)
    assert SILENT[fault] in (ANY_STEP, found.step)
    assert fault.mentions in " ".join((found.summary, *found.evidence))


@pytest.mark.parametrize("fault", CONTROLS, ids=lambda fault: fault.name)
def test_healthy_training_is_accused_of_nothing(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    assert set(outcome.codes) == {0}
    assert serious(outcome.report) == []
    assert outcome.partings == ()


@pytest.mark.parametrize("fault", APART, ids=lambda fault: fault.name)
def test_watch_tells_replicas_that_are_not_equal(fault: Fault, runs: Runs) -> None:
    (told,) = runs.outcome(fault).partings

    assert told.ranks == fault.culprits
    assert f"since step {SILENT[fault]}: " in told.summary


@pytest.mark.parametrize("fault", [MENTIONED], ids=lambda fault: fault.name)
def test_what_may_be_meant_so_is_mentioned(fault: Fault, runs: Runs) -> None:
    report = runs.outcome(fault).report

    (mentioned,) = [each for each in report.findings if each.name == "missing-gradient-sync"]
    assert (mentioned.severity, mentioned.cause, mentioned.step) == (Severity.INFO, "outside", 1)
    assert serious(report) == []


@pytest.mark.parametrize("fault", BESIDE_THE_PROJECT, ids=lambda fault: fault.name)
def test_silent_fault_beside_the_project_is_found(fault: Fault, runs: Runs) -> None:
    (found,) = serious(runs.outcome(fault).report)

    assert found.name in fault.verdicts
    assert found.culprits == fault.culprits


def serious(report: Report) -> list[Finding]:
    """Return what is said beside the pace of ranks: these share their cores with whatever else goes on."""
    return [each for each in report.findings if each.severity is not Severity.INFO and not each.code.startswith("DD2")]
