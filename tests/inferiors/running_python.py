"""Python that runs: threads that come and go ("churn"), or four threads that take turns with the GIL ("spin")."""

import sys
import threading


def deep(number):
    return deep(number - 1) if number else sum(range(300))


def spin():
    while True:
        deep(15)


def churn():
    while True:
        thread = threading.Thread(target=deep, args=(20,))
        thread.start()
        thread.join()


if sys.argv[1] == "spin":
    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()
print(0, flush=True)
{"spin": spin, "churn": churn}[sys.argv[1]]()
