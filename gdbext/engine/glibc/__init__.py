"""glibc's private structures, per architecture and version: threads, thread-local storage, synchronization objects."""
