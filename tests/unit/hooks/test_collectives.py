"""Where calls come from, in which circumstances they were made, and what recording them must not do."""

import contextlib
import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives

from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.journal import Journal, read_lines
from tests.recordings import Recording, floats, lonely_world, pretended_world, recording
from tests.waiting import until

dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


# ---- where a call comes from ---------------------------------------------------------------------------------
def line_after(function: Callable[..., Any], offset: int) -> str:
    """Return ``file:line name`` of a line of a function, counted from its ``def``."""
    return f"{__file__}:{inspect.getsourcelines(function)[1] + offset} {function.__name__}"


def reduce_sum(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def log_loss() -> None:
    reduce_sum(floats(1))


def test_call_site_is_the_path_of_user_frames_from_the_outermost_to_the_innermost(recorded: Recording) -> None:
    log_loss()

    frames = recorded.the_call().frames
    assert frames[-2:] == (line_after(log_loss, 1), line_after(reduce_sum, 1))
    assert "test_call_site_is_the_path" in frames[-3]


def test_frames_of_libraries_are_no_part_of_the_path(recorded: Recording) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(functools.partial(torch.no_grad()(reduce_sum), floats(1)))

    assert recorded.the_call().site == line_after(reduce_sum, 1)
    assert not any("contextlib" in frame or "/torch/" in frame for frame in recorded.the_call().frames)


def test_calls_of_one_kind_share_a_signature_and_a_path(recorded: Recording) -> None:
    for _ in range(3):
        dist.barrier()
        dist.all_reduce(floats(2))

    assert len(recorded.log.of(events.Signature)) == 2
    assert len({each.signature.path for each in recorded.log.issued()}) == 2
    assert len(recorded.log.issued()) == 6


jit: Any = torch.jit


def scripted_reduce(tensor: torch.Tensor, group: str) -> torch.Tensor:
    reduced: torch.Tensor = torch.ops._c10d_functional.all_reduce(tensor, "sum", group)
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(reduced)
    return waited


def scripted_fork(tensor: torch.Tensor, group: str) -> torch.Tensor:
    reduced: torch.Tensor = jit.wait(jit.fork(scripted_reduce, tensor, group))
    return reduced


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_call_from_a_thread_without_python_frames_is_recorded(recorded: Recording) -> None:
    # TorchScript runs forked tasks on threads that Python does not know, as autograd does for other devices.
    program = jit.script(scripted_fork)

    with torch.inference_mode():  # autograd of functional collectives is written in Python
        program(floats(2), dist.group.WORLD.group_name)

    assert recorded.the_call().op == "all_reduce"
    assert recorded.the_call().frames == ()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_call_of_a_backward_without_python_frames_comes_from_the_line_of_the_backward(recorded: Recording) -> None:
    program = jit.script(scripted_fork)
    group = dist.group.WORLD.group_name
    weight: Any = floats(2).requires_grad_()

    def reduce(gradient: torch.Tensor) -> None:
        with torch.inference_mode():
            program(floats(2), group)

    weight.register_hook(reduce)

    def train() -> None:
        weight.sum().backward()

    train()

    assert recorded.the_call().site == line_after(train, 1)


# ---- what is no collective -----------------------------------------------------------------------------------
def test_calls_on_meta_and_fake_tensors_are_not_recorded(recorded: Recording) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def reduce(tensor: torch.Tensor) -> None:
        functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))

    reduce(torch.ones(2, device="meta"))
    with FakeTensorMode():
        reduce(floats(2))
    assert recorded.log.issued() == []

    reduce(floats(2))

    assert recorded.the_call().op == "all_reduce"


def test_calls_in_inference_mode_and_on_parameters_are_recorded(recorded: Recording) -> None:
    with torch.inference_mode():
        dist.all_reduce(floats(2))
    dist.all_reduce(torch.nn.Parameter(floats(2)).data)
    dist.broadcast(torch.nn.Parameter(floats(2), requires_grad=False), 0)

    assert [each.op for each in recorded.log.issued()] == ["all_reduce", "all_reduce", "broadcast"]


# ---- circumstances -------------------------------------------------------------------------------------------
def test_call_made_while_an_exception_is_handled_names_its_type(recorded: Recording) -> None:
    with contextlib.suppress(KeyError):
        try:
            raise KeyError("lost")
        finally:
            dist.barrier()
    dist.barrier()

    assert [each.call.handling for each in recorded.log.issued()] == ["KeyError", None]


def test_call_tells_its_thread(recorded: Recording) -> None:
    worker = threading.Thread(target=dist.barrier, name="checkpointer")
    worker.start()
    worker.join()
    dist.barrier()

    assert [each.signature.thread for each in recorded.log.issued()] == ["checkpointer", "MainThread"]


def test_second_thread_on_a_group_with_an_unfinished_call_is_contended(recorded: Recording) -> None:
    dist.all_reduce(floats(2), async_op=True)
    dist.all_reduce(floats(2), async_op=True)
    worker = threading.Thread(target=dist.barrier)
    worker.start()
    worker.join()

    assert [each.call.contended for each in recorded.log.issued()] == [False, False, True]


def test_second_thread_on_a_group_of_its_own_is_not_contended(recorded: Recording) -> None:
    group = dist.new_group([0, 1, 2, 3])
    dist.all_reduce(floats(2), async_op=True)
    worker = threading.Thread(target=dist.barrier, args=(group,))
    worker.start()
    worker.join()

    assert [each.call.contended for each in recorded.log.issued()] == [False, False]


def test_members_of_a_coalesced_batch_share_a_number(recorded: Recording) -> None:
    def exchange() -> None:
        with dist._coalescing_manager(dist.group.WORLD, torch.device("cpu"), async_ops=True):
            dist.isend(floats(2), 0)
            dist.irecv(floats(2), 2)

    exchange()
    dist.barrier()
    exchange()

    assert [each.call.coalesced for each in recorded.log.issued()] == [1, 1, None, 2, 2]


# ---- what recording must not do --------------------------------------------------------------------------------
@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_tensor_is_freed_right_after_its_call(tmp_path: Path) -> None:
    with no_garbage_collection(), recording(tmp_path), lonely_world():
        tensor = floats(4)
        freed = weakref.ref(tensor)
        dist.all_reduce(tensor)

        del tensor

        until(lambda: freed() is None)  # the backend's thread lets go last


def test_tensor_is_freed_after_a_call_that_raised(tmp_path: Path) -> None:
    with no_garbage_collection(), recording(tmp_path) as made, lonely_world():
        tensor = floats(4)
        freed = weakref.ref(tensor)
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.BAND)
        except RuntimeError as error:
            message = str(error)

        del tensor

        until(lambda: freed() is None)  # the backend's thread lets go last
        done = made.the_call().done
        assert done is not None
        assert done.failed
        assert done.error == f"RuntimeError: {message}"


def test_broken_recording_leaves_the_result_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(journal: Journal, lines: bytes) -> None:
        raise OSError("no more room")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    with recording(tmp_path), lonely_world():
        monkeypatch.setattr(Journal, "append", broken)
        tensor = floats(2)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        gathered = [torch.zeros(2)]
        dist.all_gather(gathered, tensor * 2)

    assert tensor.tolist() == [1, 1]
    assert gathered[0].tolist() == [2, 2]


def test_every_segment_of_a_long_log_can_be_read_alone(tmp_path: Path) -> None:
    with recording(tmp_path, max_bytes=64 << 10), pretended_world():
        for _ in range(80):
            dist.barrier()
            dist.all_reduce(floats(2))

    files = sorted(tmp_path.glob("rank00001*.jsonl"))
    assert len(files) > 3
    for file in files:
        records = [events.decode(line) for line in read_lines(file)]
        signatures = {each.signature: each for each in records if isinstance(each, events.Signature)}
        paths = {each.path for each in records if isinstance(each, events.Path)}
        groups = {each.group for each in records if isinstance(each, events.Group)}
        for call in (each for each in records if isinstance(each, events.Call)):
            assert signatures[call.signature].path in paths
            assert signatures[call.signature].group in groups
