"""torch.distributed in memory: the flight recorder, process groups, stores."""
