"""Source and schemas as data: syntax trees, imports, scripts as modules, the JSON Schemas."""
