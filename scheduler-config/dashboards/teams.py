"""The dashboard of those who submit gangs: mine, by namespace."""

from __future__ import annotations

from dataclasses import replace

from grafana_foundation_sdk.builders import dashboard

from dashboards.operators import WAITING
from dashboards.parts import About, Panel, Query, bars, choice, graph, made_of, most, number, or_zero, words

MINE = 'gang_namespace=~"$namespace"'
NAMESPACE = "gang_namespace"
COMMANDS = """\
| question | command |
| --- | --- |
| Why does my pod wait, and what would help? | `kubectl gpu-topology why POD -n NAMESPACE` |
| What waits, since when, and why? | `kubectl gpu-topology gangs` |
| Where would 16 GPUs find room in one rack? | `kubectl gpu-topology free --for 16 --scope rack` |

Each kind of cause has its sentence in `kubectl describe pod`, with numbers.
"""


def teams() -> dashboard.Dashboard:
    """Return the dashboard."""
    return made_of(
        "muster-teams",
        "Muster for teams",
        "The gangs of your namespaces: what runs, what waits, and why.",
        [choice("namespace", "Namespace", "label_values(muster_namespace_gangs, gang_namespace)")],
        {"My gangs": [*_figures(), *_gangs()], "My GPUs": _gpus(), "What could start now?": _next()},
    )


def _sum(metric: str, label: str, labels: str = "", by: str = "") -> str:
    """Return a gauge of the chosen namespaces, summed by one label. `label`: what it has besides these."""
    bounded = most(f"{metric}{{{MINE}{labels}}}", NAMESPACE, label)
    return or_zero(f"sum by ({by}) ({bounded})" if by else f"sum({bounded})", by)


def _figures() -> list[Panel]:
    oldest = or_zero(most(f"muster_namespace_oldest_gang_seconds{{{MINE}}}"))
    figures = [
        (
            About("Gangs that wait", "Not all of the members that they need are bound."),
            _sum("muster_namespace_gangs", "phase", f",{WAITING}"),
        ),
        (
            About("Gangs that run", "All members that they need are bound."),
            _sum("muster_namespace_gangs", "phase", ',phase="running"'),
        ),
        (
            About("GPUs in use", "Whole GPUs of bound members of gangs."),
            _sum("muster_namespace_gpus", "state", ',state="bound"'),
        ),
        (About("Longest wait", "Age of the oldest gang that waits.", "s"), oldest),
    ]
    return [
        number(replace(about, width=6, height=4), Query(expr, about.title.lower())) for about, expr in figures
    ]


def _gangs() -> list[Panel]:
    unfinished = ',phase!="finished"'
    return [
        graph(
            About("My gangs by phase", "`collecting`: pods are missing. `unplaceable`: no room now."),
            Query(_sum("muster_namespace_gangs", "phase", unfinished, "phase"), "{{phase}}"),
            stacked=True,
        ),
        bars(
            About("Why my gangs wait", "Gangs by the kind of cause that blocks them now."),
            Query(f"sort_desc({_sum('muster_namespace_causes', 'cause', by='cause')})", "{{cause}}"),
        ),
        words(About("Ask about one gang", "Commands that show numbers and what would help."), COMMANDS),
    ]


def _gpus() -> list[Panel]:
    def by_namespace(state: str) -> Query:
        labels = f',state="{state}"'
        return Query(_sum("muster_namespace_gpus", "state", labels, NAMESPACE), "{{gang_namespace}}")

    return [
        graph(
            About("GPUs in use, by namespace", "Whole GPUs of bound members of gangs.", width=12),
            by_namespace("bound"),
            stacked=True,
        ),
        graph(
            About("GPUs that waiting members ask for", "By namespace. They are not held.", width=12),
            by_namespace("waiting"),
            stacked=True,
        ),
    ]


def _next() -> list[Panel]:
    room = most("muster_largest_fit_gpus", "scope", "model")
    age = most(f"muster_namespace_oldest_gang_seconds{{{MINE}}}", NAMESPACE)
    return [
        bars(
            About(
                "Largest gang that could start now",
                "Most free GPUs of a model in one domain of each scope, for all teams.",
                width=12,
            ),
            Query(f"sort_desc({room})", "{{scope}} · {{model}}"),
        ),
        graph(
            About("Age of my oldest gang", "By namespace. 0: nothing waits.", "s", width=12),
            Query(or_zero(age, NAMESPACE), "{{gang_namespace}}"),
        ),
    ]
