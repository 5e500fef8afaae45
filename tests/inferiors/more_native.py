"""Waits for native locks, taken crosswise or entered again. Argument: the kind (see KINDS)."""

import sys
import threading

import native_library
import truth

native = native_library.load("more")
KINDS = {"priority-inheritance": ["mutex", "mutex"], "once-again": ["once"], "static-late": ["static-init", None, None]}
"""What each thread waits for, by its number."""


def work(number):
    truth.thread(str(number), waits="any", waits_for=KINDS[kind][number])
    named.wait()
    getattr(native, kind.replace("-", "_"))(number)


kind = sys.argv[1]
named = threading.Barrier(len(KINDS[kind]) + 1)
for number in range(len(KINDS[kind])):
    threading.Thread(target=work, args=(number,), daemon=True).start()
named.wait()
truth.main_ready()
sys.stdin.readline()
