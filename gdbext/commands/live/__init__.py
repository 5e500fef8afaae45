"""Commands that let the process run on: breakpoints, traces, values, counts."""
