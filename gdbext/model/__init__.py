"""The plain, frozen, typed words of the program: threads, frames, waits, findings, reports."""
