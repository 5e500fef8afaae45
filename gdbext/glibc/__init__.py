"""glibc's private structures: threads, thread-local storage, synchronisation objects."""
