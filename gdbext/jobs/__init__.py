"""Many ranks, one answer: merging their reports, matching collectives, who waits for whom. Pure."""
