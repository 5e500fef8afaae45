"""The tool dispatch-collectives: process groups, sequence numbers, pending collectives."""
