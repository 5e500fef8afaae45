"""gdb and LLDB as an editor runs them by the Debug Adapter Protocol (gdb -i=dap, since gdb 14; lldb-dap)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from support.programs.debugger_terminal import PipedDebugger


class DapSession(PipedDebugger):
    """One debugger; every message that it sent is in ``messages``."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        self.messages: list[dict[str, Any]] = []
        self._data = b""
        self._number = 0

    def attach(self, pid: int, **options: Any) -> dict[str, Any]:
        """As an editor does: attach is answered after the configuration is done, which comes after "initialized".
        What the adapter can."""
        found = self.request("initialize", {"clientID": "test", "adapterID": "test"})
        self._send("attach", {"pid": pid, **options})
        end = time.monotonic() + 90
        while not self.events("initialized"):
            assert time.monotonic() < end, self.messages
            self._read(1)
        self.request("configurationDone")
        capabilities: dict[str, Any] = found["body"]
        return capabilities

    def request(self, command: str, arguments: dict[str, Any] | None = None, seconds: float = 90) -> dict[str, Any]:
        """The response."""
        return self.response(self._send(command, arguments or {}), seconds)

    def response(self, number: int, seconds: float = 90) -> dict[str, Any]:
        """The response to the request of that number."""
        end = time.monotonic() + seconds
        while True:
            for message in self.messages:
                if message["type"] == "response" and message["request_seq"] == number:
                    return message
            left = end - time.monotonic()
            assert left > 0, f"no answer to request {number} in {seconds} s: {self.messages[-3:]}"
            self._read(left)

    def evaluate(self, command: str) -> str:
        """What a command prints in the editor's console."""
        return self.result(self.begin(command))

    def begin(self, command: str) -> int:
        """The number of the request to evaluate a command, which runs then."""
        return self._send("evaluate", {"expression": command, "context": "repl"})

    def result(self, number: int, seconds: float = 90) -> str:
        """What a command that was begun has printed."""
        response = self.response(number, seconds)
        assert response["success"], response
        return str(response["body"]["result"])

    def until(self, event: str, count: int, seconds: float = 30) -> None:
        """Wait until there were that many events of that name."""
        end = time.monotonic() + seconds
        while len(self.events(event)) < count:
            left = end - time.monotonic()
            assert left > 0, f"no {event} in {seconds} s: {self.messages[-3:]}"
            self._read(left)

    def events(self, *names: str) -> list[str]:
        """The events of these names so far, in order."""
        return [each["event"] for each in self.messages if each["type"] == "event" and each["event"] in names]

    def output(self) -> str:
        """Everything that was said to the editor's console besides results."""
        outputs = (each["body"] for each in self.messages if each["type"] == "event" and each["event"] == "output")
        return "".join(each["output"] for each in outputs)

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return self._number

    def _read(self, seconds: float) -> None:
        self._data += self.read(seconds)
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            length = int(head.rpartition(b":")[2])
            if len(rest) < length:
                return
            self.messages.append(json.loads(rest[:length]))
            self._data = rest[length:]
