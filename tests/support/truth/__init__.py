"""What programs and other tools say of themselves, compared with what gdbext reads."""
