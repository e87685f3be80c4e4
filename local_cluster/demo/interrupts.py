"""Ctrl-C and SIGTERM, so that none is lost and none leaves half of the processes running."""

from __future__ import annotations

import signal


class Interrupts:
    """Both signals raise KeyboardInterrupt, and are remembered: one that falls into code which can't raise
    (a finalizer) is raised at the next `check`. Only for the main thread."""

    def __init__(self) -> None:
        self._seen = False
        self._held = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self._seen = True
        if not self._held:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came and is not held back."""
        if self._seen and not self._held:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """No interrupt from here on: what stops the processes must come to its end, and then nothing is left
        that one could stop."""
        self._held = True
