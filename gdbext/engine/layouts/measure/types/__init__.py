"""The types, members and constants that are measured, by the part of the program that needs them."""
