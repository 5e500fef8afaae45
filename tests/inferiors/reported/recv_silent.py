"""recv-silent: a client without a timeout waits for an answer of a server that never sends one.

Source: https://github.com/psf/requests/issues/4624. Argument: "tcp" or "unix".
"""

from __future__ import annotations

import os
import socket
import sys
import time

import truth

family = socket.AF_INET if sys.argv[1] == "tcp" else socket.AF_UNIX
server = socket.socket(family)
server.bind(("127.0.0.1", 0) if sys.argv[1] == "tcp" else os.path.join(os.getcwd(), "server"))
server.listen()
client = socket.socket(family)
client.connect(server.getsockname())
pid = os.fork()
if pid == 0:
    client.close()
    accepted, _ = server.accept()
    time.sleep(truth.FOREVER)
server.close()
time.sleep(0.2)
truth.thread("main", waits=None)
names = [str(pid)]
if sys.argv[1] == "tcp":
    names.append("127.0.0.1:%d" % client.getpeername()[1])
truth.note(verdict="waiting-external", names=names)
truth.ready()
client.recv(1)
