"""The records of a report: threads, frames, waits, findings, the verdict; as JSON and as text."""
