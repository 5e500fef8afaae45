"""Leads from registers to native frames: call frame information, and what is tried where there is none."""
