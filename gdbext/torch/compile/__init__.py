"""torch.compile: TorchDynamo's records of compilations, and compiled frames on stacks."""
