"""gdb and LLDB as an editor runs them by the Debug Adapter Protocol (gdb -i=dap, since gdb 14; lldb-dap)."""

from __future__ import annotations

import json
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
        capabilities: dict[str, Any] = self.request("initialize", {"clientID": "test", "adapterID": "test"})["body"]
        self._send("attach", {"pid": pid, **options})
        self.until("initialized", 1)
        self.request("configurationDone")
        return capabilities

    def request(self, command: str, arguments: dict[str, Any] | None = None, seconds: float = 90) -> dict[str, Any]:
        return self.response(self._send(command, arguments or {}), seconds)

    def response(self, number: int, seconds: float = 90) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.wait(
            lambda: [each for each in self.messages if each.get("request_seq") == number],
            f"an answer to request {number}",
            seconds,
        )
        return found[0]

    def evaluate(self, command: str) -> str:
        return self.result(self.begin(command))

    def begin(self, command: str) -> int:
        """The number of the request to evaluate a command, which runs then."""
        return self._send("evaluate", {"expression": command, "context": "repl"})

    def result(self, number: int, seconds: float = 90) -> str:
        response = self.response(number, seconds)
        assert response["success"], response
        return str(response["body"]["result"])

    def until(self, event: str, count: int) -> None:
        self.wait(lambda: len(self.events(event)) >= count, event)

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["type"] == "event" and each["event"] in names]

    def output(self) -> str:
        return "".join(each["body"]["output"] for each in self.events("output"))

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return self._number

    def take(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            length = int(head.rpartition(b":")[2])
            if len(rest) < length:
                return
            self.messages.append(json.loads(rest[:length]))
            self._data = rest[length:]
