"""Leads from bytes to meaning, without a process: ELF, symbol tables, notes and cores, call frame information,
names."""
