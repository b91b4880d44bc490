"""Installing and removing all hooks: nothing stays, nothing breaks, and off means off."""

import faulthandler
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining

import distdiag
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks import HOOKS
from tests.ranks import ROOT
from tests.recordings import floats, lonely_world, pretended_world, read_logs, recording

dist: Any = torch.distributed

PATCHED = {
    "os._exit",
    "sys.excepthook",
    "threading.excepthook",
    "torch.OutOfMemoryError.__init__",
    "torch.distributed.distributed_c10d.Work.wait",
    "torch.distributed.distributed_c10d.ProcessGroup._start_coalescing",
    "torch.distributed.distributed_c10d.ProcessGroup._end_coalescing",
    "torch.autograd.backward",
    "torch.cuda.graphs.CUDAGraph.replay",
    "torch.distributed.init_process_group",
    "torch.distributed.destroy_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
    "torch.distributed.distributed_c10d._new_group_with_tag",
    "torch.distributed.distributed_c10d.destroy_process_group",
    "torch.nn.parallel.distributed.DistributedDataParallel.forward",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel.forward",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.unshard",
    "torch.distributed.pipelining.schedules.PipelineScheduleSingle.step",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
    "dispatcher: c10d::allreduce_",
    "dispatcher: c10d::send",
    "dispatcher: _c10d_functional::wait_tensor",
    "optimizer hooks",
    "garbage collector callbacks",
    "threads",
}
"""What must have changed for this test to be worth anything; not all that may."""

COUNTERS_AND_CACHES = ("torch.ops.", "torch.utils.hooks.RemovableHandle.next_id")
"""What torch itself changes by being used."""


def surroundings() -> dict[str, object]:
    """Return the identity of everything that a hook could have changed."""
    optimizer: Any = sys.modules["torch.optim.optimizer"]
    found: dict[str, object] = {
        "optimizer hooks": (
            list(optimizer._global_optimizer_pre_hooks),
            list(optimizer._global_optimizer_post_hooks),
        ),
        "garbage collector callbacks": list(map(id, gc.callbacks)),
        "import system": list(map(id, sys.meta_path)),
        "faulthandler": faulthandler.is_enabled(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }
    for module in (os, sys, threading, *(each for name, each in sys.modules.items() if is_torch(name))):
        found |= attributes(module)
    operators = {str(name) for name in torch._C._dispatch_get_all_op_names() if "c10d" in str(name)}
    return found | {f"dispatcher: {name}": torch._C._dispatch_dump(name) for name in operators}


def is_torch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def attributes(module: ModuleType) -> dict[str, object]:
    """Return the identities of a module's attributes, and of those of the classes defined in it."""
    found: dict[str, object] = {}
    for name, value in list(vars(module).items()):
        found[f"{module.__name__}.{name}"] = id(value)
        # Some of torch's objects warn when they are asked for their class.
        if issubclass(type(value), type) and value.__module__ == module.__name__:
            found |= {f"{module.__name__}.{name}.{inner}": id(held) for inner, held in vars(value).items()}
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and not name.startswith(COUNTERS_AND_CACHES)
    }


def test_nothing_is_patched_when_it_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG", "off")
    before = surroundings()

    distdiag.install(tmp_path / "logs")

    assert changed(before, surroundings()) == set()
    assert not distdiag.is_recording()
    assert not (tmp_path / "logs").exists()


def test_nothing_stays_after_uninstall(tmp_path: Path) -> None:
    before = surroundings()
    distdiag.install(tmp_path)
    assert changed(before, surroundings()) >= PATCHED

    distdiag.uninstall()

    assert changed(before, surroundings()) == set()


def test_installing_twice_is_installing_once(tmp_path: Path) -> None:
    with recording(tmp_path / "one"):
        before = surroundings()

        distdiag.install(tmp_path / "other")

        assert changed(before, surroundings()) == set()
        assert not (tmp_path / "other").exists()


def test_recording_can_begin_again(tmp_path: Path) -> None:
    with recording(tmp_path / "one"), lonely_world():
        dist.barrier()
    with lonely_world():
        dist.barrier()
    with recording(tmp_path / "two") as made, lonely_world():
        dist.barrier()
        dist.all_reduce(floats(2))

    assert [each.op for each in made.log.issued()] == ["barrier", "all_reduce"]
    (first,) = read_logs(tmp_path / "one").values()
    assert [each.op for each in first.issued()] == ["barrier"]


def test_directory_that_cannot_be_made_leaves_everything_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    (tmp_path / "file").write_text("no directory")
    before = surroundings()

    distdiag.install(tmp_path / "file" / "logs")

    assert changed(before, surroundings()) == set()
    assert not distdiag.is_recording()


def test_setting_that_is_no_number_does_not_reach_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    monkeypatch.setenv("DISTDIAG_STALL_AFTER", "soon")

    distdiag.install(tmp_path)

    assert not distdiag.is_recording()


def test_hook_that_cannot_be_installed_does_not_keep_the_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(recorder: object) -> None:
        raise OSError("no /proc")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    monkeypatch.setattr(HOOKS[0], "install", broken)
    with recording(tmp_path) as made, pretended_world():
        dist.barrier()

    assert [each.op for each in made.log.issued()] == ["barrier"]


def test_public_functions_do_nothing_where_nothing_is_recorded() -> None:
    distdiag.step(loss=1.0)
    distdiag.decision("stop", True)
    with distdiag.phase("save"):
        pass
    distdiag.uninstall()


def test_every_hook_module_is_registered_and_has_tests() -> None:
    modules = {each.stem for each in (ROOT / "hooks").glob("*.py") if not each.stem.startswith("_")} - {"stacks"}
    tests = {each.stem.removeprefix("test_") for each in Path(__file__).parent.glob("test_*.py")}

    assert {each.__name__.rpartition(".")[2] for each in HOOKS} == modules
    assert tests >= modules | {"stacks"}


# ---- processes that do not use torch, or not yet ----------------------------------------------------------------
def python(code: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DISTDIAG_DIR": str(directory / "logs")},
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_recording_loads_neither_torch_nor_libraries_of_the_analysis(tmp_path: Path) -> None:
    done = python(
        "import distdiag, sys\n"
        "distdiag.install()\n"
        "distdiag.step(loss=1.5)\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'rich', 'click', 'duckdb', 'ibis'} & set(sys.modules)))\n"
        "raise ValueError('lost')",
        tmp_path,
    )

    (log,) = read_logs(tmp_path / "logs").values()
    assert done.stdout == "[]\n", done.stderr
    assert [(each.fault, each.type, each.where) for each in log.faults("exception", "exit")] == [
        ("exception", "ValueError", "uncaught"),
        ("exit", None, "interpreter"),
    ]


IMPORTED_LATER = """
import distdiag, importlib.util, sys, warnings
distdiag.install()
assert importlib.util.find_spec("torch") is not None  # as libraries do to learn whether it is there
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
group = dist.new_group([0])
dist.destroy_process_group()
torch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()
distdiag.uninstall()
from torch.distributed import distributed_c10d as c10d
warnings.simplefilter("ignore")
wrapped = [name for module in (dist, c10d, torch.autograd, c10d.Work) for name, value in vars(module).items()
           if "distdiag" in getattr(getattr(value, "__code__", None), "co_filename", "")]
print(wrapped, len(sys.meta_path))
"""


def test_torch_that_is_imported_after_install_is_watched_and_then_left_as_it_was(tmp_path: Path) -> None:
    done = python(IMPORTED_LATER, tmp_path, "-W", "default")

    (log,) = read_logs(tmp_path / "logs").values()
    bare = python("import sys, torch, torch.distributed; print([], len(sys.meta_path))", tmp_path)
    assert done.stdout == bare.stdout, done.stderr
    assert "distdiag" not in done.stderr
    assert [each.op for each in log.issued()] == ["barrier"]
    assert [len(log.phases(f"{each}_process_group")) for each in ("init", "destroy")] == [2, 2]
    assert len(log.phases("new_group")) == 2
