"""Numbers for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.cli.units import age, duration, run_time, seconds_of, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0421, "0.042 s"),
        (3, "3 s"),
        (3.14159, "3.1 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.8231, "0.8231 µs"),
        (12.344, "12.34 µs"),
        (999.94, "999.9 µs"),
        (999.96, "1.000 ms"),
        (1234.5, "1.234 ms"),
        (2.3456e6, "2.346 s"),
        (5e9, "5000 s"),
    ],
)
def test_run_time(time_us: float, text: str) -> None:
    assert run_time(time_us) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 << 10, "1.5 MiB"), (1 << 62, "4096 PiB")],
)
def test_size(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "now"), (0.5, "now"), (12.9, "12 s"), (60, "1 min"), (7200, "2 h"), (86_400 * 40, "40 d")],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


@given(st.floats(min_value=1e-3, max_value=1e12, allow_nan=False))
def test_a_run_time_is_true_to_four_digits(time_us: float) -> None:
    number, unit = run_time(time_us).split()
    shown_us = float(number) * {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    assert shown_us == pytest.approx(time_us, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 30 * 86_400), ("12 h", 43_200), (" 90MIN ", 5_400), ("2w", 14 * 86_400), ("1.5h", 5_400), ("0s", 0)],
)
def test_an_age_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1y", "1m", "1 d ago", "1e3d", "infd", "٣d", "1" * 5000 + "d"])
def test_what_is_no_age(text: str) -> None:
    assert seconds_of(text) is None
