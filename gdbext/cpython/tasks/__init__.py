"""asyncio: event loops, their tasks, and what each task awaits."""
