"""agent-polls: a launcher sleeps and looks at its workers, as torchrun does; one waits for nothing that comes.

Source: https://github.com/pytorch/pytorch/pull/185414, https://github.com/pytorch/elastic/issues/134.
"""

from __future__ import annotations

import subprocess
import sys
import time

import truth

STUCK = "import threading; threading.Event().wait()"


class Agent:
    def __init__(self):
        commands = (STUCK, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        self.processes = {rank: subprocess.Popen([sys.executable, "-c", text]) for rank, text in enumerate(commands)}

    def monitor(self):
        while True:
            time.sleep(0.5)
            if self.processes[0].poll() is not None:
                return


agent = Agent()
truth.thread("main", waits=None)
time.sleep(0.5)
truth.note(verdict="waiting-external", names=[str(process.pid) for process in agent.processes.values()] + ["SIGKILL"])
truth.ready()
agent.monitor()
