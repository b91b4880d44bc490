"""The text report: the verdict comes first, fits the terminal and says what to do."""

import io
from pathlib import Path

import pytest

from distdiag.findings import Report, Verdict
from distdiag.reporters import text
from distdiag.reporters._lines import plain
from distdiag.reporters.words import duration, headline
from distdiag.wording import fold
from tests.reports import FINDING, healthy, position, stuck

EXPECTED = Path(__file__).parent / "expected" / "stuck.txt"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(report: Report | None = None, width: int = 100, height: int = 100) -> list[str]:
    return [plain(line) for line in text.compose(report or stuck(), width=width, height=height)]


def rows(report: Report | None = None) -> list[str]:
    shown = lines(report)
    begin = next(number for number, line in enumerate(shown) if line.startswith("  ranks "))
    return shown[begin : shown.index("", begin)]


def test_report_reads_as_expected() -> None:
    assert "\n".join(lines()) + "\n" == EXPECTED.read_text()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(width=width))) <= width


def test_verdict_is_said_again_after_a_report_longer_than_the_screen() -> None:
    short, long = lines(height=100), lines(height=20)

    assert short[0] not in short[1:]
    assert long[-1] == long[0]


def test_healthy_run_takes_three_lines_at_most() -> None:
    assert 1 <= len(lines(healthy())) <= 3


def test_other_findings_of_a_healthy_run_are_still_shown() -> None:
    assert any("DD201 compute-straggler" in line for line in lines(healthy(findings=(FINDING,))))


def test_culprits_come_first_and_ranks_at_one_place_share_a_row() -> None:
    assert [row.split()[0] for row in rows()] == ["ranks", "5", "0-4,6-7"]


def test_group_is_named_in_the_table_only_where_there_are_several() -> None:
    elsewhere = position(8, doing="barrier 3 of group tp")

    assert not any("of group dp" in row for row in rows())
    assert any("of group dp" in row for row in rows(stuck(positions=(position(0), elsewhere))))


def test_ranks_without_a_log_have_their_row() -> None:
    assert rows(stuck(data_quality={"missing_ranks": [3, 4]}))[-1].split() == ["3-4", "left", "no", "log"]


def test_only_the_first_sentence_is_the_headline() -> None:
    verdict = Verdict(name="rank-died", code="DD302", summary="rank 1 raised (train.py:9). Others wait. And wait.")

    shown = lines(stuck(verdict=verdict))

    assert shown[0].startswith("DIED  rank 1 raised (train.py:9)  ")
    assert shown[1] == "      Others wait. And wait."


def test_a_thousand_places_are_cut_to_a_screenful() -> None:
    scattered = tuple(position(rank, where=f"/job/train.py:{rank} f") for rank in range(1000))

    shown = lines(stuck(positions=scattered))

    assert len(shown) < 60
    assert any("and 988 more places" in line for line in shown)


def test_paths_are_whole_where_the_reader_has_to_open_them() -> None:
    assert "Look at        /job/dataset.py:31  rank 5" in lines()


def test_file_gets_no_colour_and_a_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file, terminal = io.StringIO(), Terminal()

    text.render(stuck(), file)
    text.render(stuck(), terminal)

    assert "\x1b[" not in file.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_no_color_is_respected_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()

    text.render(stuck(), terminal)

    assert "\x1b[" not in terminal.getvalue()


def test_text_that_looks_like_markup_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    verdict = Verdict(name="healthy", summary="[red]tensor[0:4][/red] :warning: is fine")

    text.render(healthy(verdict=verdict), terminal)

    assert "[red]tensor[0:4][/red] :warning: is fine" in terminal.getvalue()


@pytest.mark.parametrize(
    ("ranks", "written"), [([], ""), ([3], "3"), ([1, 0, 2], "0-2"), ([0, 1], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8")]
)
def test_ranks_are_written_as_ranges(ranks: list[int], written: str) -> None:
    assert fold(ranks) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0123, "12 ms"), (5.04, "5.0 s"), (611.2, "611.2 s"), (1800, "30 min"), (9e4, "25.0 h")]
)
def test_durations_are_written_in_the_unit_that_fits(seconds: float, written: str) -> None:
    assert duration(seconds) == written


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [
        ("healthy", None, "HEALTHY"),
        ("rank-missing", "DD301", "STUCK"),
        ("rank-died", "DD302", "DIED"),
        ("sequence-divergence", "DD311", "DIVERGED"),
        ("out-of-memory", "DD401", "OUT OF MEMORY"),
        ("replica-desync", "DD503", "SILENTLY WRONG"),
        ("gc-pause", "DD209", "SLOW"),
        ("logs-missing", "DD101", "INCOMPLETE"),
    ],
)
def test_verdict_begins_with_the_word_of_its_family(name: str, code: str | None, word: str) -> None:
    assert headline(name, code) == word
