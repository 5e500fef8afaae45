"""One file for each part of the JSON documents."""
