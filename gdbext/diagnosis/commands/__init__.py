"""The commands of the diagnosis, which share one inspection: dispatch-bt, all-threads and dispatch-diagnose."""
