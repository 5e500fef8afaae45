"""busy: a training loop, as healthy as it gets; its operators are large, so that a look falls into one."""

from __future__ import annotations

import torch
import truth

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
batch, wanted = torch.randn(8192, 64), torch.randn(8192, 8)
truth.thread("main", waits=None)
truth.note(verdict="busy", busy=True)
turns = 0
while True:
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(batch), wanted).backward()
    optimiser.step()
    turns += 1
    if turns == 3:
        truth.ready()
