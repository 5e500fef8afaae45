"""What the tests share, in rooms."""
