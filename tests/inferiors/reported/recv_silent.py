"""recv-silent: a client without a timeout waits for an answer of a server that never sends one.

Source: https://github.com/psf/requests/issues/4624.
"""

from __future__ import annotations

import os
import socket
import time

import truth

server = socket.socket(socket.AF_UNIX)
server.bind(os.path.join(os.getcwd(), "server"))
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(server.getsockname())
pid = os.fork()
if pid == 0:
    client.close()
    accepted, _ = server.accept()
    time.sleep(truth.FOREVER)
server.close()
time.sleep(0.2)
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=[str(pid)])
truth.ready()
client.recv(1)
