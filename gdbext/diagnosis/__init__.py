"""The diagnosis: snapshots of threads, their waits, the verdict; dispatch-bt, all-threads and dispatch-diagnose."""
