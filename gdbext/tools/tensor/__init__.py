"""The tool dispatch-tensor: a tensor found by address, register or Python name, described, saved."""
