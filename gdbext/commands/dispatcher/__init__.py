"""Commands that answer questions about the dispatcher: its operators, keys, tables and tensors."""
