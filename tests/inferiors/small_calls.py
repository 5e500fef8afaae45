"""small_calls: dispatches a small operator two hundred times a second, and counts in a file how far it has come."""

import time
from pathlib import Path

import torch
import truth

torch.set_num_threads(1)
ones = torch.ones(4)
turns = Path(f"{truth.path()}.turns")
truth.thread("main", waits=None)
truth.note(verdict="busy", turns=str(turns))
count = 0
while True:
    torch.add(ones, ones)
    count += 1
    if count % 20 == 0:
        turns.write_text(str(count))
    if count == 20:
        truth.ready()
    time.sleep(0.005)
