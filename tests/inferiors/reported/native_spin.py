"""native-spin: a regular expression backtracks for ever, inside a C function and outside of the dispatcher.

Source: https://github.com/python/cpython/issues/46018 and many reports of "100 % CPU, no output".
"""

from __future__ import annotations

import re

import truth

truth.thread("main", waits="running")
truth.note(verdict="busy", busy=True, names=["re"])
truth.ready()
re.match(r"(a+)+b", "a" * 60)
