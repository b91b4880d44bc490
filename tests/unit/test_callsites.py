"""Call sites: interned paths of the frames that a user wrote."""

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import distdiag
from distdiag import callsites
from distdiag.callsites import CallSites, Site
from tests.ranks import line_of

HERE = __file__


def inner() -> FrameType:
    return sys._getframe()  # LINE inner


def outer() -> FrameType:
    return inner()  # LINE outer


def site_of(sites: CallSites) -> Site:
    return sites.at(outer())


def code_in(file: str, source: str) -> dict[str, Any]:
    """Run source text as if it stood in a file."""
    namespace: dict[str, Any] = {"sys": sys}
    exec(compile(source, file, "exec"), namespace)
    return namespace


CALLER = "def call(function): return function()\n"


def test_path_runs_from_the_outermost_frame_to_the_innermost() -> None:
    frames = site_of(CallSites()).frames

    assert frames[-2:] == [f"{line_of(HERE, 'outer')} outer", f"{line_of(HERE, 'inner')} inner"]


def test_same_place_is_the_same_site() -> None:
    sites = CallSites()

    one, other = (site_of(sites) for _ in range(2))

    assert one is other


def test_two_calls_in_one_line_are_two_sites_with_equal_frames() -> None:
    sites = CallSites()

    one, other = sites.at(outer()), sites.at(outer())

    assert one is not other
    assert one.frames[-2:] == other.frames[-2:]


def test_digest_is_that_of_the_frames_in_every_process() -> None:
    assert site_of(CallSites()).digest == site_of(CallSites()).digest


def test_libraries_are_passed_over_but_not_what_is_installed_beside_torch() -> None:
    library, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    torch = code_in(f"{packages}/torch/nn/modules/module.py", CALLER)["call"]
    trainer = code_in(f"{packages}/trainer/loop.py", CALLER)["call"]
    standard = code_in(f"{library}/contextlib.py", CALLER)["call"]
    generated = code_in("<string>", CALLER)["call"]

    frame = torch(lambda: trainer(lambda: standard(lambda: generated(inner))))

    frames = [each.rpartition("/")[2] for each in CallSites().at(frame).frames]
    assert [each for each in frames if "<lambda>" not in each][-2:] == [
        "loop.py:1 call",
        f"{line_of(HERE, 'inner').rpartition('/')[2]} inner",
    ]


def test_package_with_a_similar_name_is_not_torch() -> None:
    packages = sysconfig.get_path("purelib")
    similar = code_in(f"{packages}/torchtune/recipe.py", CALLER)["call"]

    frames = CallSites().at(similar(inner)).frames

    assert any("torchtune/recipe.py:1 call" in each for each in frames)


def test_walk_ends_after_enough_frames_of_the_user() -> None:
    def deep(depth: int) -> FrameType:
        return deep(depth - 1) if depth else sys._getframe()

    frames = CallSites().at(deep(100)).frames

    assert len(frames) == callsites.BUDGET // callsites.USER_FRAME


def test_no_frame_is_nowhere() -> None:
    sites = CallSites()

    assert sites.at(None) is sites.nowhere
    assert sites.nowhere.frames == []


def test_programs_that_compile_code_as_they_go_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callsites, "MAX_SITES", 20)
    sites = CallSites()

    numbers = [sites.at(code_in(f"/job/{number}.py", CALLER)["call"](inner)).number for number in range(50)]

    assert nodes(sites.nowhere) <= 20 + callsites.BUDGET
    assert len(set(numbers)) == 50


def nodes(site: Site) -> int:
    return 1 + sum(nodes(child) for child in site.children.values())


def test_another_threads_place_can_be_asked_for() -> None:
    sites = CallSites()
    started, stopped = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        stopped.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    site = sites.at(sys._current_frames()[thread.ident or 0])
    stopped.set()
    thread.join()

    assert site.frames[-1].endswith(" wait")


def test_user_frames_are_picked_from_a_traceback() -> None:
    packages = sysconfig.get_path("purelib")
    trace = [
        ("/job/train.py", 3, "<module>"),
        (f"{packages}/torch/_tensor.py", 9, "backward"),
        ("/job/loss.py", 4, "f"),
    ]

    assert CallSites().user_frames(trace) == ["/job/train.py:3 <module>", "/job/loss.py:4 f"]


def test_frames_of_every_file_that_runs_in_the_job_are_no_user_frames() -> None:
    reading = {
        *("allocation.py", "cli.py", "deferred.py", "doctor.py", "findings.py", "notebook.py", "remote.py"),
        *("launch_names.py", "replicas.py", "stackframes.py", "wording.py"),
    }
    files = [file for file in Path(distdiag.__file__).parent.glob("*.py") if file.name not in reading]

    frames = CallSites().user_frames([(str(file), 1, "function") for file in files])

    assert {"callsites.py", "recorder.py", "steps.py"} <= {file.name for file in files}
    assert frames == []
