"""Alignment of streams of calls: extra, missing and mispaired calls are found where they happened."""

from hypothesis import given
from hypothesis import strategies as st

from distdiag.analyzers.investigation.align import Departure, Kind, Stream, Token, align, departure

LINES = st.sampled_from("abcd")


def token(line: str, signature: int = 1, module: str | None = None) -> Token:
    return Token(signature, ("train.py:1 main", f"train.py:{line} step"), module)


def stream(lines: str, labels: str = "") -> Stream:
    """One call for each letter, all with equal arguments but those of capital letters."""
    tokens = [token(line, signature=2 if line.isupper() else 1) for line in lines]
    return Stream(tokens=tokens, labels=[(int(label),) for label in labels])


def left_at(reference: Stream, odd: Stream) -> Departure | None:
    return departure(reference, odd, align(reference, odd))


@given(st.text("abcAB", max_size=40))
def test_a_stream_does_not_leave_itself(lines: str) -> None:
    alignment = align(stream(lines), stream(lines))

    assert alignment.cost == 0
    assert left_at(stream(lines), stream(lines)) is None


@given(st.text("abc", min_size=1, max_size=30), st.integers(0, 30))
def test_a_stream_that_stops_early_runs_the_same_program(lines: str, length: int) -> None:
    alignment = align(stream(lines), stream(lines[:length]))

    assert alignment.same_program
    assert left_at(stream(lines), stream(lines[:length])) is None


@given(st.text("abc", min_size=4, max_size=30), st.data())
def test_an_extra_call_from_a_line_of_its_own_is_found_where_it_was_made(lines: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(lines) - 1))
    odd = lines[:position] + "x" + lines[position:]

    found = left_at(stream(lines + "E"), stream(odd + "E"))

    assert found == Departure(reference=position, odd=position, kind=Kind.EXTRA)


@given(st.text("ab", min_size=4, max_size=20), st.text("cd", min_size=4, max_size=20))
def test_a_call_left_out_is_found_where_it_is_missing(before: str, after: str) -> None:
    found = left_at(stream(before + "x" + after + "E"), stream(before + after + "E"))

    assert found == Departure(reference=len(before), odd=len(before), kind=Kind.LEFT_OUT)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_the_arms_of_a_branch_on_the_rank_are_roles(leads: list[bool]) -> None:
    leader = stream("".join("l" if lead else "m" for lead in leads))
    follower = stream("".join("f" if lead else "m" for lead in leads))

    alignment = align(leader, follower)

    assert alignment.same_program
    assert departure(leader, follower, alignment) is None


def test_a_leader_that_rotates_does_not_leave_the_others() -> None:
    first = stream("lffmlffmlffm")
    second = stream("flfmflfmflfm")

    assert left_at(first, second) is None


def test_calls_swapped_without_a_consequence_are_no_departure() -> None:
    assert left_at(stream("abcabc"), stream("bacabc")) is None


def test_calls_swapped_where_arguments_have_to_agree_are_one() -> None:
    found = left_at(stream("aBcabc"), stream("Bacabc"))

    assert found is not None
    assert (found.reference, found.odd) == (0, 0)


def test_labels_choose_among_equal_places_for_a_gap() -> None:
    reference = stream("aaaaE", "01234")

    skipped_second = left_at(reference, stream("aaaE", "0234"))
    skipped_last = left_at(reference, stream("aaaE", "0124"))

    assert skipped_second is not None
    assert skipped_last is not None
    assert (skipped_second.reference, skipped_last.reference) == (1, 3)


def test_without_labels_a_gap_is_put_as_late_as_possible() -> None:
    found = left_at(stream("aaaabE"), stream("aaabE"))

    assert found is not None
    assert found.reference == 3


def test_labels_that_all_differ_do_not_make_another_program() -> None:
    many = "ab" * 200
    ours, theirs = ([(number,) for number in range(shift, 400 + shift)] for shift in (0, 7))
    shifted = Stream(tokens=stream(many).tokens, labels=theirs)

    assert align(Stream(tokens=stream(many).tokens, labels=ours), shifted).same_program


def test_streams_that_stop_at_different_calls_leave_undecided_which_is_wrong() -> None:
    found = left_at(stream("aabE"), stream("aabF"[:3] + "c"))

    assert found == Departure(reference=3, odd=3, kind=None)


def test_another_module_is_a_departure_even_at_equal_size() -> None:
    reference = Stream(tokens=[token("a", module=name) for name in ("x", "y", "z")])
    odd = Stream(tokens=[token("a", module=name) for name in ("x", "w", "z")])

    found = left_at(reference, odd)

    assert found is not None
    assert (found.reference, found.kind) == (1, Kind.INSTEAD)


def test_a_shift_far_wider_than_the_first_band_is_found() -> None:
    lines = "abc" * 100

    found = left_at(stream(lines + "d" * 60 + lines + "E"), stream(lines + lines + "E"))

    assert found is not None
    assert (found.reference, found.kind, found.calls) == (300, Kind.LEFT_OUT, 60)


@given(st.text("abAB", max_size=25), st.text("abAB", max_size=25))
def test_pairs_of_an_alignment_go_forward_on_both_sides(left: str, right: str) -> None:
    pairs = align(stream(left), stream(right)).pairs

    assert list(pairs) == sorted(set(pairs))
    assert all(i < len(left) and j < len(right) for i, j in pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


@given(st.text("abAB", max_size=25), st.text("abAB", max_size=25))
def test_an_alignment_costs_the_same_from_either_side(left: str, right: str) -> None:
    assert align(stream(left), stream(right)).cost == align(stream(right), stream(left)).cost
