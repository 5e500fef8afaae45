"""PyTorch in the target's memory: dispatcher, stacks, tensors, autograd, distributed, torch.compile."""
