"""Signals that all come at once, in a Python of any program."""

BURST = """
import signal
seen = set()
numbers = {*signal.valid_signals()} & {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1), 1, 3, 15, 17}
before = {number: signal.signal(number, lambda number, _: seen.add(number)) for number in numbers - {17}}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
for number in numbers:
    signal.raise_signal(number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
assert seen == numbers - {17}, numbers - seen
print("handled", len(seen))
"""
"""Source code: handles real-time signals, those that end a command, and SIGCHLD as the program does, each before the
handler of the one before has begun: the kernel writes a frame for every pending signal before it returns to the program
(exit_to_user_mode_loop, kernel/entry/common.c), so that all frames lie on one stack."""
