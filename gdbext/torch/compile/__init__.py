"""torch.compile: what TorchDynamo's Python objects say of compilations, and of the frames on stacks."""
