"""What single commands add to their reports: one file for each section that a room below the commands fills."""
