"""dispatch-values: tensors and other arguments of operators as they are called, and what they return."""
