"""OpenSSH's daemon on the loopback, with keys and a configuration of its own, for as long as a test needs it.

Nothing of the user's is read or written. Several addresses of 127.0.0.0/8 stand for several machines.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.installed.machine import PLACES
from support.programs.harness import wait_until

_CONFIGURATION = """\
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
_OPTIONS = {
    "IdentitiesOnly": "yes",
    "UserKnownHostsFile": "/dev/null",
    "GlobalKnownHostsFile": "/dev/null",
    "StrictHostKeyChecking": "no",
    "LogLevel": "ERROR",
}


@contextmanager
def running(folder: Path, addresses: Sequence[str]) -> Iterator[str]:
    """The options for ssh to come in, while the daemon listens on the addresses, all of the loopback."""
    assert all(address.startswith("127.") for address in addresses), addresses
    for name in ("host_key", "user_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    (port,) = free_ports(1)
    configuration = folder / "sshd_config"
    listening = "".join(f"ListenAddress {address}\n" for address in addresses)
    configuration.write_text(_CONFIGURATION.format(port=port, folder=folder) + listening)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it sheds its rights: made by systemd elsewhere
    log = folder / "sshd.log"
    program = str(shutil.which("sshd", path=PLACES))  # the whole path: it starts itself anew for each who comes
    daemon = subprocess.Popen([program, "-D", "-f", configuration, "-E", log], stdin=subprocess.DEVNULL)
    try:
        for address in addresses:
            wait_until(lambda: daemon.poll() is not None or _answers(address, port), f"sshd answers at {address}")  # noqa: B023
            assert daemon.poll() is None, log.read_text()
        options = " ".join(f"-o{name}={value}" for name, value in _OPTIONS.items())
        yield f"-F /dev/null -p {port} -i {shlex.quote(str(folder / 'user_key'))} {options}"
    finally:
        daemon.terminate()
        daemon.wait()


def free_ports(count: int) -> list[int]:
    """Of the loopback."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
