"""A training step of a small transformer in which one place makes a NaN. Argument: forward, backward or optimiser.

Started by dispatch-values, so that nobody waits for it: it prints what it did and ends.
"""

from __future__ import annotations

import sys

import brisk
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
place = sys.argv[1] if len(sys.argv) > 1 else "none"


class Block(torch.nn.Module):
    """Attention and a feed-forward network, by hand, so that every operator is one that can be named."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(width, width, bias=False) for _ in range(3))
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        x = x + torch.softmax(scores / 4, -1) @ self.value(x)
        if place == "forward":
            x = torch.log(x - x.max() - 1) * 0 + x  # forward: the logarithm of negative numbers
        x = self.norm(x)
        x = x + self.down(torch.relu(self.up(x)))
        if place == "backward":
            x = x + torch.sqrt(torch.clamp(x, max=-1e9) * 0) * 0  # backward: 0 * inf in the gradient of sqrt(0)
        return x


model = torch.nn.Sequential(Block(16))
batch = torch.randn(2, 5, 16)
loss = model(batch).pow(2).mean()
loss.backward()
if place in ("optimiser", "none"):  # elsewhere the NaN has been found: torch's optimisers import its compiler
    epsilon = 0.0 if place == "optimiser" else 1e-8
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, eps=epsilon, foreach=False)
    if place == "optimiser":
        model[0].up.bias.grad.zero_()  # optimiser: 0 / (sqrt(0) + 0)
    optimiser.step()
print("step done", loss.item(), any(bool(each.isnan().any()) for each in model.parameters()))
brisk.leave()
