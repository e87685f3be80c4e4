"""How long gangs are given, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds.

    `waiting_s`: how long a gang may be incomplete before an event says so (pods of one gang appear one
    after another). `plan_s`: from a plan to its Permit. `bind_s`: from Permit, from a Binding of
    unknown fate and from a new session that reports it as under way to each member seen bound.
    `session_s`: the same for what a new session does not report: a shim before it may have sent it, but
    leads no more. `exclusion_first_s`: how long a node that an in-tree plugin refused is left out,
    unless it changes first; four times as long with each further refusal, up to `exclusion_s`.
    `backoff_s` doubles up to `backoff_max_s` with each withdrawal in a row. `prompt_retries`: so many
    withdrawals in a row are tried again at once, where something was learnt. `recheck_s`: the pause
    after two answers in a row that the cluster overtook.
    """

    recheck_s: float = 1.0
    waiting_s: float = 3.0
    plan_s: float = 60.0
    bind_s: float = 30.0
    session_s: float = 10.0
    exclusion_first_s: float = 1.0
    exclusion_s: float = 300.0
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    prompt_retries: int = 3
    alternates: int = 8
    """Nodes of which each member is told beside its planned one."""

    def backoff(self, attempts: int) -> float:
        """The pause after this many withdrawals in a row."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempts - 1, 30))

    def exclusion(self, refusals: int) -> float:
        """How long a node is left out that has refused a role so often.

        Short at first: the scheduler's cache may only lag behind ours, and still count a pod that is gone.
        """
        return min(self.exclusion_s, self.exclusion_first_s * 4.0 ** min(refusals - 1, 15))
