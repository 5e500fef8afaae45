"""The dispatcher's frames on a stack: what each call is for, proven by the operator's own table."""
