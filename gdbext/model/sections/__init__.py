"""What single commands add to their reports: one type each, for the sections that a room below the commands fills."""
