"""From registers to native frames: call frame information, and what is left where there is none."""
