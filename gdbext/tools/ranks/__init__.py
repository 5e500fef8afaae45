"""The tool ranks: reports of many ranks merged, collectives matched, and who waits for whom."""
