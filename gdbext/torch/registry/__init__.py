"""The dispatcher's registry: operators, schemas, kernels, registrations and computed tables."""
