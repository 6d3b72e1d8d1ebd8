"""Child processes that never outlive their parent: a broker that was killed must leave nobody behind who writes to its files.

The parent holds the only writing end of a pipe and each child the reading one: however the parent ends, the child reads the end
of it, at once or as soon as it looks. On Linux the kernel tells it too, which reaches a child that is stopped or busy in C code,
once it has asked to be told; one stopped before that is killed by the next process that wants its files (`kill_orphans`).

lifeline = Lifeline()
subprocess.Popen(argv, env=lifeline.environment(os.environ), pass_fds=lifeline.fds)   # the parent
end_with_parent(signal.SIGTERM)                                                       # first thing in the child
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping

VARIABLE = "LOGFLUME_LIFELINE"
_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The parent's end. Children started with its `environment` and `fds` end when it is closed or this process dies."""

    def __init__(self) -> None:
        self._reading_fd, self._writing_fd = os.pipe()

    @property
    def fds(self) -> tuple[int, ...]:
        """What a child has to inherit."""
        return (self._reading_fd,)

    def environment(self, others: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables with the one that tells a child where its end is."""
        return {**others, VARIABLE: f"{self._reading_fd}:{os.getpid()}"}

    def close(self) -> None:
        """End the children. Idempotent."""
        fds, self._reading_fd, self._writing_fd = (self._reading_fd, self._writing_fd), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def end_with_parent(number: signal.Signals) -> None:
    """Have this process sent a signal when its parent ends; nothing if it was not started with a `Lifeline`."""
    # Taken out of the environment: the number means nothing to children of this process.
    text = os.environ.pop(VARIABLE, "")
    if not text:
        return
    fd, parent_pid = map(int, text.split(":"))
    os.set_inheritable(fd, False)
    if sys.platform == "linux":
        _ask_kernel(number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)  # it died before the kernel was asked
    threading.Thread(target=_wait_for_end, args=(fd, number), name="lifeline", daemon=True).start()


def _ask_kernel(number: signal.Signals) -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another C library; the pipe is enough
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def _wait_for_end(fd: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        while os.read(fd, 1):
            pass
    os.kill(os.getpid(), number)


def kill_orphans(parent_pid: int, path: str) -> None:
    """Kill those children of a process that has ended, started with its `Lifeline`, that hold a file open. Linux only.

    Nobody else is harmed: not a process that was forked without a `Lifeline`, nor one of another container.
    """
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            pidfd = os.pidfd_open(int(name))
            try:
                if _is_orphan(f"/proc/{name}", parent_pid, os.stat(path)):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def _is_orphan(process: str, parent_pid: int, file: os.stat_result) -> bool:
    if not os.path.samefile(f"{process}/ns/pid", "/proc/self/ns/pid"):
        return False
    with open(f"{process}/environ", "rb") as environment:
        started_with = [entry for entry in environment.read().split(b"\0") if entry.startswith(VARIABLE.encode() + b"=")]
    if not any(entry.endswith(b":%d" % parent_pid) for entry in started_with):
        return False
    return any(os.path.samestat(os.stat(f"{process}/fd/{fd}"), file) for fd in os.listdir(f"{process}/fd"))
