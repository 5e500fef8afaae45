"""idle: an interpreter with torch at its prompt, on a terminal of its own."""

import os
import pty

import torch
import truth

torch.mm(torch.ones(2, 2), torch.ones(2, 2))
ours, its = pty.openpty()
for stream in (0, 1):
    os.dup2(its, stream)
os.environ["PYTHONINSPECT"] = "1"
truth.main_ready(verdict="idle", terminal=ours)
