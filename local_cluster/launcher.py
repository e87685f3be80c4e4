"""Run by `processes.Process` in the child, before the real program takes its place (exec).

A program of its own and not a `preexec_fn`, which may deadlock in a process with threads. It writes
the PID file itself, so that there is no moment in which the program runs and no file tells of it.
Standard library only: it starts with `python -I -S`.

    launcher.py PARENT_PID SIGNAL PID_FILE PROGRAM [ARGUMENT...]    PARENT_PID 0: outlive the parent
                                                                    SIGNAL: what the parent's end sends
                                                                    PID_FILE "": none
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone, whatever way it went."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it went before the call
        sys.exit(1)


def write_pid_file(path: Path) -> None:
    """Write what identifies this process, also after its PID is used again."""
    stat = Path("/proc/self/stat").read_text()
    identity = {
        "pid": os.getpid(),
        "start_ticks": int(stat.rpartition(")")[2].split()[19]),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(identity))
    partial.rename(path)


def main(parent: str, number: str, pid_file: str, *argv: str) -> None:
    """Become the program `argv`, tied to the life of `parent` unless that is 0."""
    if parent != "0":
        die_with(int(parent), signal.Signals[number])
    if pid_file:
        write_pid_file(Path(pid_file))
    try:
        os.execvp(argv[0], argv)
    except OSError as problem:
        sys.exit(f"cannot run {argv[0]}: {problem.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
