"""A call that is finished by two threads at once."""

from __future__ import annotations

import contextlib
import threading

from exec_server._sync.link import Call


class MeetingCall(Call):
    """Threads that ask whether it is done wait for each other, as if the interpreter switched between them there."""

    __slots__ = ("barrier", "value")

    @property
    def is_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        value = self.value
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.2)
        return value

    @is_done.setter
    def is_done(self, value: bool) -> None:
        self.value = value


def test_the_gate_is_opened_once() -> None:
    call = MeetingCall("fs/readChanges")
    call.barrier = threading.Barrier(2)
    failures: list[Exception] = []

    def finish() -> None:
        try:
            call.finish({}, None)
        except RuntimeError as error:
            failures.append(error)

    threads = [threading.Thread(target=finish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and call.value
