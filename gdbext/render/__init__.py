"""Reports as text, JSON, DOT and Chrome traces."""
