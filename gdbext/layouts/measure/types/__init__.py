"""What is measured of each program: types, members and constants, by the part that wants them."""
