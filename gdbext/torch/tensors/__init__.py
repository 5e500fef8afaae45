"""What is in a tensor: its elements in memory, their statistics, and files made of them."""
