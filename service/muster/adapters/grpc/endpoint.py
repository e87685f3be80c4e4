"""Own the unix socket's file: private, locked, and without the remains of a killed service.

Before gRPC binds, it removes any file at the socket's path, even the socket of a running service. So a lock
file next to the socket says which process owns the path. The kernel releases the lock when its holder ends,
for any reason. The lock file has the last session epoch, so that epochs rise across restarts even if the
clock is set back.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

PATH_LIMIT = 107
"""Bytes of a unix socket's path, without its closing NUL: sizeof(sun_path) on Linux is 108."""


class SocketError(Exception):
    """This process can't own the socket. The text says what to do."""


class Endpoint:
    """The socket's path, its folder and its lock: `claim` before the server binds, `release` after it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock_path = self.path.with_name(self.path.name + ".lock")
        self._lock: int | None = None
        self._epoch = 0

    @property
    def address(self) -> str:
        """Return the address in gRPC's form."""
        return f"unix:{self.path}"

    def claim(self) -> None:
        """Take the path and remove a stale socket from it.

        Raises:
            SocketError: another service runs there, or other users can write to the folder.
        """
        if len(os.fsencode(self.path)) > PATH_LIMIT:
            raise SocketError(
                f"socket path {self.path} is longer than {PATH_LIMIT} bytes, the limit of unix sockets: "
                "choose a shorter one"
            )
        self._make_folder(self.path.parent)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise SocketError(f"another service runs on {self.path} (it holds {self._lock_path})") from None
        self._lock = lock
        self._epoch = self._stored_epoch()
        self._remove_socket()

    def protect(self) -> None:
        """Let only this user and root connect. Call it after the bind."""
        self.path.chmod(0o600)

    def release(self) -> None:
        """Remove the socket and release the path. The lock file stays: its removal would be a race."""
        if self._lock is None:
            return
        self._remove_socket()
        os.close(self._lock)
        self._lock = None

    def next_epoch(self) -> int:
        """Return a larger number than all earlier epochs on this path.

        An epoch is the wall clock in milliseconds, so epochs also rise if the folder was wiped.
        """
        if self._lock is None:
            raise SocketError(f"{self.path} is not claimed")
        self._epoch = max(self._epoch + 1, time.time_ns() // 1_000_000)
        os.pwrite(self._lock, f"{self._epoch:020d}\n".encode(), 0)
        return self._epoch

    def _stored_epoch(self) -> int:
        assert self._lock is not None
        text = os.pread(self._lock, 64, 0).strip()
        return int(text) if text.isdigit() else 0

    def _remove_socket(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise SocketError(f"{self.path} is no socket: choose another path, or remove it")
        self.path.unlink()

    @staticmethod
    def _make_folder(folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as problem:
            raise SocketError(f"can't make the socket's folder {folder}: {problem.strerror}") from problem
        if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
            raise SocketError(
                f"others may write to {folder}, and so replace the socket: use a folder of its own "
                f"(it is created with mode 0700), for example {folder / 'muster' / 'muster.sock'}"
            )
