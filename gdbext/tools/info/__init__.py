"""The tool dispatch-info: what was found of torch, Python and layouts; settings; memory."""
