"""Python without torch, full of names that drive a terminal: of threads, functions, files and the process itself."""

import ctypes
import sys
import threading
import time

import truth

ESCAPE = "\x1b[31mred\x07\x9b2J\r"
PR_SET_NAME = 15


def wait():
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"\x1b[5mcomm\n", 0, 0, 0)
    truth.thread("nameless")
    is_there.set()
    threading.Event().wait()


is_there = threading.Event()
names = {"co_name": ESCAPE + "function", "co_filename": "/tmp/" + ESCAPE + "file.py"}
if sys.version_info >= (3, 11):
    names["co_qualname"] = names["co_name"]
wait.__code__ = wait.__code__.replace(**names)
threading.Thread(target=wait, name=ESCAPE + "thread", daemon=True).start()


def stand_still():
    is_there.wait()
    truth.main_ready(verdict="idle", escape=ESCAPE)
    time.sleep(truth.FOREVER)


stand_still()
