"""The interpreter in the target's memory: versions, objects, threads, frames, the GIL, locks, asyncio tasks."""
