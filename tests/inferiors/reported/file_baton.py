"""file-baton: a compilation was killed and left its lock file behind; everybody waits for it to go away.

Source: https://github.com/pytorch/pytorch/issues/189245 (torch.utils.file_baton.FileBaton.wait sleeps and looks).
"""

from __future__ import annotations

import os
import time

import truth


class FileBaton:
    """As torch.utils.file_baton has it."""

    def __init__(self, path):
        self.lock_file_path = path
        self.wait_seconds = 0.1

    def wait(self):
        while os.path.exists(self.lock_file_path):
            time.sleep(self.wait_seconds)


path = os.path.join(os.getcwd(), "lock")
with open(path, "w"):
    pass
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=[path])
truth.ready()
FileBaton(path).wait()
