"""Moments as logs write them: often without a year, never with a zone."""

import datetime
import re
from dataclasses import dataclass

SECOND_NS = 1_000_000_000
DAY = datetime.timedelta(days=1)
_ISO = re.compile(
    r"(?<!\d)(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]"
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
)
_ISO_WITHIN = 80
"""A moment stands at the beginning of a line; further in, it is something that the message is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A moment of the clock on the wall, in the zone of whoever wrote it."""

    year: int | None
    month: int
    day: int
    second_of_day: int
    nanosecond: int

    def wall_ns(self, latest: datetime.datetime) -> int | None:
        """Return it in nanoseconds since the epoch, as if in UTC; a missing year is the last that fits.

        ``latest`` is a moment that the log was certainly finished at, give or take a day.
        """
        years = (self.year,) if self.year is not None else (latest.year, latest.year - 1)
        for year in years:
            try:
                day = datetime.datetime(year, self.month, self.day, tzinfo=datetime.UTC)
            except ValueError:
                continue
            if self.year is not None or day <= latest + DAY:
                return (int(day.timestamp()) + self.second_of_day) * SECOND_NS + self.nanosecond
        return None


def stamp_in(text: str) -> Stamp | None:
    """Return the moment with a year that stands at the beginning of a line."""
    found = _ISO.search(text, 0, _ISO_WITHIN)
    if not found:
        return None
    return _stamp(int(found["year"]), found["month"], found["day"], found["clock"], found["fraction"] or "0")


def stamp_of_glog(month: str | None, day: str | None, clock: str | None) -> Stamp | None:
    """Return the moment of a glog prefix, which knows no year: its month is not padded, its day is."""
    if month is None or day is None or clock is None:
        return None
    whole, _, fraction = clock.partition(".")
    return _stamp(None, month, day, whole, fraction)


def _stamp(year: int | None, month: str, day: str, clock: str, fraction: str) -> Stamp | None:
    hours, minutes, seconds = map(int, clock.split(":"))
    stamp = Stamp(
        year=year,
        month=int(month),
        day=int(day),
        second_of_day=hours * 3600 + minutes * 60 + seconds,
        nanosecond=int(fraction[:9].ljust(9, "0")),
    )
    return stamp if 1 <= stamp.month <= 12 and 1 <= stamp.day <= 31 and stamp.second_of_day <= 86_400 else None
