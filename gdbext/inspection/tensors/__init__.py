"""Tensors: chosen by address or by a Python name, described, saved."""
