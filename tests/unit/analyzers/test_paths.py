"""Fork lines of call sites."""

from distdiag.analyzers.investigation.paths import fork_line, own_line, short

MAIN = "train.py:9 main"
WRAPPER = "/code/comm.py:3 all_reduce"


def test_the_fork_is_the_outermost_line_that_differs() -> None:
    ours, theirs = (MAIN, "train.py:20 step", WRAPPER), (MAIN, "train.py:30 step", WRAPPER)

    assert fork_line(ours, theirs) == "train.py:20"


def test_equal_paths_show_the_line_that_no_other_site_shares() -> None:
    path = (MAIN, "train.py:20 step", WRAPPER)

    assert fork_line(path, path, shared={MAIN, WRAPPER}) == "train.py:20"
    assert fork_line(path, path) == "/code/comm.py:3"


def test_paths_of_two_threads_show_their_own_lines() -> None:
    assert fork_line((MAIN, "train.py:20 step"), ("save.py:5 run", WRAPPER), shared={MAIN}) == "train.py:20"


def test_a_site_without_frames_has_no_line() -> None:
    assert own_line((), set()) is None
    assert fork_line((), (MAIN,)) is None


def test_sentences_name_files_without_their_folders() -> None:
    assert short("/job/src/train.py:88") == "train.py:88"
