"""Reports as pages that need nothing but a browser."""
