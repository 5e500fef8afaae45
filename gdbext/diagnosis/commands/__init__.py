"""The commands of a diagnosis, all over one inspection: dispatch-bt, all-threads and dispatch-diagnose."""
