"""The process as a rank of a job: its groups, collectives and recorded operations."""
