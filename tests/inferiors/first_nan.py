"""A training step of attention in which one place makes a NaN. Argument: forward, backward or update.

Started by dispatch-values, so that nobody waits for it: it prints what it did and ends.
"""

import sys

import brisk
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
place = sys.argv[1]
query, value = (torch.nn.Linear(16, 16) for _ in range(2))
norm = torch.nn.LayerNorm(16)
x = torch.randn(2, 5, 16)
scores = query(x) @ x.transpose(-2, -1)
x = x + torch.softmax(scores / 4, -1) @ value(x)
if place == "forward":
    x = torch.log(x - x.max() - 1) * 0 + x  # forward: the logarithm of negative numbers
x = norm(x)
if place == "backward":
    x = x + torch.sqrt(torch.clamp(x, max=-1e9) * 0) * 0  # backward: 0 * inf in the gradient of sqrt(0)
loss = x.pow(2).mean()
loss.backward()
if place == "update":
    with torch.no_grad():
        value.bias.addcdiv_(torch.zeros(16), torch.zeros(16).sqrt())  # update: 0 / sqrt(0), as of an optimizer
print("step done", loss.item())
brisk.leave()
