"""Numbers for people: durations, times of a run, sizes, ages."""

from __future__ import annotations

import math
import re
from typing import Final

_SIZES: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS_S: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_AGE: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<unit>s|min|h|d|w)", re.ASCII)
_AGES: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def duration(seconds: float) -> str:
    """How long something takes, as precisely as anybody wants to know: `0.42 s`, `14 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def run_time(time_us: float) -> str:
    """The time of one run, to four digits: `0.8231 µs`, `12.34 µs`, `1.234 ms`, `2.345 s`."""
    for factor, unit in ((1.0, "µs"), (1e3, "ms")):
        if time_us < 999.95 * factor:
            return f"{_four_digits(time_us / factor)} {unit}"
    return f"{_four_digits(time_us / 1e6)} s"


def size(size_bytes: int) -> str:
    """A number of bytes: `0`, `512 B`, `1.5 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B" if size_bytes else "0"
    power = min((size_bytes.bit_length() - 1) // 10, len(_SIZES))
    return f"{size_bytes / 1024**power:.4g} {_SIZES[power - 1]}"


def age(seconds: float) -> str:
    """How long ago, in its largest unit: `12 s`, `3 h`, `40 d`; what lies ahead (another clock) is `now`."""
    for unit_s, unit in _AGES:
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return "now"


def _four_digits(value: float) -> str:
    value = float(f"{value:.4g}")  # first, for 0.99996 has a digit less than what it rounds to
    decimals = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(max(decimals, 0), 6)}f}"


def seconds_of(text: str) -> float | None:
    """The seconds that an age or a duration means, `30d`, `12 h`, `90min`, `2w`; None if it means none."""
    found = _AGE.fullmatch(text.strip().lower())
    return None if found is None else float(found["number"]) * _UNITS_S[found["unit"]]
