"""Amounts in words: singular and plural, sizes, durations; and no report that says ``1 threads``."""

from __future__ import annotations

import pytest

from gdbext.engine.vocabulary import byte_size, counted, duration, of_many


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "thread", "0 threads"),
        (1, "process", "1 process"),
        (2, "child", "2 children"),
        (3, "entry", "3 entries"),
        (1234, "dispatch", "1,234 dispatches"),
        (2, "key", "2 keys"),
    ],
)
def test_numbers_and_nouns(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
    assert of_many(number, "is", "are") == ("is" if number == 1 else "are")


def test_sizes() -> None:
    found = [byte_size(number) for number in (1, 40, 1536, 3 << 30, 5000 << 50)]
    assert found == ["1 byte", "40 bytes", "1.5 KiB", "3.0 GiB", "5,000.0 PiB"]


def test_durations() -> None:
    found = [duration(each) for each in (0, 3.5e-6, 0.0125, 0.25, 34, 720, 12600, 7200, 400000)]
    assert found == ["0 s", "3.5 µs", "12.5 ms", "0.25 s", "34 s", "12 min", "3.5 h", "2 h", "5 d"]
