"""The prompt of IPython. Importing this raises ImportError where IPython is not installed."""

from __future__ import annotations

from IPython import start_ipython
from traitlets.config import Config


def start(names: dict[str, object]) -> None:
    """Show the prompt, with these names defined, until the user leaves it."""
    config = Config()
    config.InteractiveShellApp.ignore_cwd = True  # it would import what lies in the folder that we are in
    start_ipython(argv=["--no-banner"], user_ns=names, config=config)
