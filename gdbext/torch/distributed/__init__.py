"""torch.distributed: the flight recorder, process groups, stores."""
