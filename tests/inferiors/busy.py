"""busy: a training loop, as healthy as it gets."""

from __future__ import annotations

import torch
import truth

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
batch, wanted = torch.randn(512, 64), torch.randn(512, 8)
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
