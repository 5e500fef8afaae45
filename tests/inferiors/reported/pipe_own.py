"""pipe-own: a process waits for the end of a pipe whose writing end nobody has but itself.

Source: https://github.com/pytorch/pytorch/pull/189290 (a reader that never sees the end of its pipe).
"""

from __future__ import annotations

import os

import truth

output, into = os.pipe()
truth.thread("main", waits="read")
truth.note(verdict="waiting-external", names=["pipe", "this process"])
truth.ready()
os.read(output, 1)
