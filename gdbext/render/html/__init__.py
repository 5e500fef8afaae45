"""Reports as pages: each one file that needs nothing else, no network and no server."""
