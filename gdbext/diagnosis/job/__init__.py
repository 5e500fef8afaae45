"""The process as one rank of a job: process groups, collectives and the operations that it recorded."""
