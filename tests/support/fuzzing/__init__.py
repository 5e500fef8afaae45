"""The damage campaign of scripts/fuzz.py: what is damaged and how, who runs the looks, what a failure is."""
