"""Recorded processes: the scenarios, their replays and damage to them."""
