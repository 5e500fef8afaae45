"""The tool dispatch-compile: what torch.compile did and does."""
