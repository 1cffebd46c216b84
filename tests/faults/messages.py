"""Single messages on their way from the broker to a client: lost, doubled, swapped with the next."""

from collections.abc import Callable

Change = Callable[[bytes, bytes], list[bytes]]


class Messages:
    """An edit for a proxy that keeps to the protocol: only whole messages are touched, everything else passes."""

    def __init__(self, subject: bytes) -> None:
        """`subject`: what the subjects of the messages meant have in them; control messages are never meant."""
        self._subject = subject
        self._buffer = b""
        self._held = b""
        self._todo: str = ""
        self.done = 0  # messages changed so far

    def next(self, what: str) -> None:
        """Do this to the next message: "lose", "double" or "swap" with the one behind it."""
        self._todo = what

    def __call__(self, chunk: bytes) -> bytes:
        self._buffer += chunk
        out = b""
        while operation := self._operation():
            out += self._changed(operation)
        return out

    def _operation(self) -> bytes:
        """The next whole operation, b"" when it has not all come yet."""
        line, found, _ = self._buffer.partition(b"\r\n")
        if not found:
            return b""
        size = len(line) + 2
        if line.split(b" ", 1)[0] in (b"MSG", b"HMSG"):
            size += int(line.rsplit(b" ", 1)[1]) + 2
        if len(self._buffer) < size:
            return b""
        operation, self._buffer = self._buffer[:size], self._buffer[size:]
        return operation

    def _changed(self, operation: bytes) -> bytes:
        words = operation.split(b"\r\n", 1)[0].split(b" ")
        if words[0] != b"MSG" or self._subject not in words[1] or b".control." in words[1] or b".gone." in words[1]:
            return operation
        if self._held:
            held, self._held = self._held, b""
            self.done += 1
            return operation + held
        what, self._todo = self._todo, ""
        if what == "swap":
            self._held = operation
            return b""
        self.done += bool(what)
        return {"lose": b"", "double": operation * 2}.get(what, operation)
