"""The dashboard of those who run a cluster: is it healthy, what waits and why, what is free where."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import (
    CRITICAL,
    OK,
    About,
    Panel,
    Query,
    bars,
    choice,
    coloured_number,
    graph,
    made_of,
    most,
    number,
    observations,
    or_zero,
    quantile,
    rate,
    total,
)

WAITING = 'phase!~"running|finished"'
HOLDING = 'phase=~"planned|reserving|permitted"'
MODELS = 'model=~"$model"'


def operators() -> dashboard.Dashboard:
    """Return the dashboard."""
    return made_of(
        "muster-operators",
        "Muster for operators",
        "Is Muster healthy, what waits and why, and what is free where?",
        [
            choice("model", "GPU model", "label_values(muster_largest_fit_gpus, model)"),
            choice("scope", "Scope", "label_values(muster_free_gpus, scope)", only="node"),
        ],
        {
            "Is it healthy?": [*_signs(), *_speed()],
            "What waits, and why?": _waiting(),
            "What is free where?": _free(),
            "What do decisions cost?": _cost(),
        },
    )


def _sign(title: str, description: str, unit: str = "short") -> About:
    return About(title, description, unit, width=4, height=4)


def _signs() -> list[Panel]:
    return [
        coloured_number(
            _sign(
                "Schedulers connected",
                "1 is right: the leader has a session with its service. 0: GPU pods wait.",
            ),
            Query(most("muster_shim_session_up"), "connected"),
            [(None, CRITICAL), (1, OK)],
        ),
        number(
            _sign(
                "Silence of the API server",
                "Longest time since a watch brought anything or was opened. Up to 120 s is usual.",
                "s",
            ),
            Query(most("muster_watch_silence_seconds"), "silence"),
            warn=130,
            alarm=150,
        ),
        number(
            _sign(
                "Partially bound gangs",
                "Gangs with fewer bound members than they need. They hold GPUs for nothing.",
            ),
            Query(most("muster_partially_bound_gangs"), "gangs"),
            alarm=1,
        ),
        number(
            _sign(
                "Planner failures",
                "Decisions in the time shown that ended in an exception. Each one is a defect.",
            ),
            Query("sum(increase(muster_planner_failures_total[$__range]))", "failures"),
            alarm=1,
        ),
        number(
            _sign(
                "Objects left out",
                "Objects that can't be read and do not count, and 1 more if the policies can't be read. "
                "An event on each says which field is wrong.",
            ),
            Query(
                'sum(max by (resource) ({__name__=~"muster_objects_left_out|muster_policies_refused"}))',
                "objects",
            ),
            warn=1,
        ),
        number(
            _sign(
                "Pods with other GPUs",
                "Pods whose containers have other GPUs than the planned ones: something else hands out GPUs.",
            ),
            Query(most("muster_pods_with_other_gpus"), "pods"),
            warn=1,
        ),
    ]


def _speed() -> list[Panel]:
    return [
        graph(
            About(
                "Time of a decision",
                "How long the planner takes for one gang. A point is a gang with a trace.",
                "s",
            ),
            Query(quantile(0.5, "muster_decision_seconds"), "half of them"),
            Query(quantile(0.99, "muster_decision_seconds"), "99 %"),
            exemplars=True,
        ),
        graph(
            About(
                "Calls of the scheduler, 99 %",
                "How long the scheduler waits: for the service, by method, and for the API server, by what "
                "became of a Binding. Failures are other codes than OK, and other Bindings than bound ones.",
                "s",
            ),
            Query(quantile(0.99, "muster_shim_unary_seconds", "method", "code"), "{{method}} {{code}}"),
            Query(quantile(0.99, "muster_shim_binding_seconds", "result"), "Binding {{result}}"),
        ),
        graph(
            About(
                "Age of what is known, 99 %",
                "Lag: from the arrival of a change to its handling. Snapshot: how old the cluster's state is "
                "when a decision is made on it.",
                "s",
            ),
            Query(quantile(0.99, "muster_watch_lag_seconds"), "lag"),
            Query(quantile(0.99, "muster_snapshot_age_seconds"), "snapshot"),
        ),
        graph(
            About("Verdicts", "Plans and refusals that the scheduler was told, in a second.", "cps"),
            Query(or_zero(rate("muster_verdicts_total", "outcome"), "outcome"), "{{outcome}}"),
        ),
        graph(
            About(
                "Withdrawn plans",
                "Plans that were given up before the gang was bound, in a second, by cause.",
                "cps",
            ),
            Query(or_zero(rate("muster_withdrawals_total", "cause"), "cause"), "{{cause}}"),
        ),
        graph(
            About(
                "Broken watches", "Watches of the API server that were begun again, by what was wrong.", "cps"
            ),
            Query(
                or_zero(rate("muster_watch_restarts_total", "resource", "reason"), "reason"),
                "{{resource}} {{reason}}",
            ),
        ),
    ]


def _waiting() -> list[Panel]:
    return [
        graph(
            About("Gangs by phase", "All gangs that have not finished. `unplaceable` ones do not fit now."),
            Query(or_zero(most('muster_gangs{phase!="finished"}', "phase"), "phase"), "{{phase}}"),
            stacked=True,
        ),
        bars(
            About(
                "Why gangs wait now",
                "Gangs by the kind of cause that blocks them. A gang may count for several.",
            ),
            Query(
                or_zero(
                    "sort_desc(sum by (cause) ("
                    + most("muster_namespace_causes", "gang_namespace", "cause")
                    + "))",
                    "cause",
                ),
                "{{cause}}",
            ),
        ),
        bars(
            About("Gangs that wait, by namespace", "The ten namespaces with the most gangs that wait."),
            Query(
                or_zero(
                    "topk(10, sum by (gang_namespace) ("
                    + most(f"muster_namespace_gangs{{{WAITING}}}", "gang_namespace", "phase")
                    + "))",
                    "gang_namespace",
                ),
                "{{gang_namespace}}",
            ),
        ),
        graph(
            About(
                "Age of the oldest gang", "Since its first waiting member was created, by its phase now.", "s"
            ),
            Query(or_zero(most("muster_oldest_gang_seconds", "phase"), "phase"), "{{phase}}"),
        ),
        graph(
            About("Causes of refusals", "Kinds of causes in the planner's answers, in a second.", "cps"),
            Query(or_zero(rate("muster_decision_causes_total", "cause"), "cause"), "{{cause}}"),
        ),
        graph(
            About(
                "Time in each phase, 95 %",
                "How long gangs were in a phase when they left it. A point is a gang with a trace.",
                "s",
            ),
            Query(quantile(0.95, "muster_gang_phase_seconds", "phase"), "{{phase}}"),
            exemplars=True,
        ),
        graph(
            About(
                "Gangs that wait for a planner",
                "They are complete and their turn has come. Above 20 is too many.",
            ),
            Query(most("muster_planner_queue_gangs", "lane"), "{{lane}}"),
        ),
        graph(
            About(
                "Age of the oldest reservation",
                "How long a gang has held GPUs without being bound. Deadlines end this after some minutes.",
                "s",
            ),
            Query(
                or_zero(most(f"muster_longest_in_phase_seconds{{{HOLDING}}}", "phase"), "phase"), "{{phase}}"
            ),
        ),
        graph(
            About(
                "Pods in the scheduler's queues",
                "Of kube-scheduler itself. `gated`: pods that wait for their gang.",
            ),
            Query(most("scheduler_pending_pods", "queue"), "{{queue}}"),
        ),
    ]


def _free() -> list[Panel]:
    return [
        bars(
            About(
                "Largest gang that fits now",
                "Most free GPUs of a model in one domain of each scope. As many members with one GPU fit, "
                "if cpu and memory suffice.",
                width=12,
            ),
            Query(
                f"sort_desc({most(f'muster_largest_fit_gpus{{{MODELS}}}', 'scope', 'model')})",
                "{{scope}} · {{model}}",
            ),
        ),
        graph(
            About("Largest gang that fits", "The same over time, for the scope chosen above.", width=12),
            Query(most(f'muster_largest_fit_gpus{{scope="$scope",{MODELS}}}', "model"), "{{model}}"),
        ),
        graph(
            About("Free GPUs", "Of nodes that take pods, by model.", width=6),
            Query(most(f'muster_largest_fit_gpus{{scope="cluster",{MODELS}}}', "model"), "{{model}}"),
            stacked=True,
        ),
        graph(
            About(
                "Free GPUs by how many lie together",
                "8: in domains of the chosen scope with 8 to 15 free GPUs. Small sizes mean scattered GPUs.",
                width=6,
            ),
            Query(or_zero(most('muster_free_gpus{scope="$scope"}', "size"), "size"), "{{size}}"),
            stacked=True,
        ),
        graph(
            About(
                "Fragmentation",
                "Share of the free GPUs that requests for 1, 2, 4 and 8 GPUs of one node can't use.",
                "percentunit",
                width=6,
            ),
            Query(or_zero(most(f"muster_fragmentation_ratio{{{MODELS}}}", "model"), "model"), "{{model}}"),
        ),
        graph(
            About(
                "Members that hold a place",
                "Not bound yet. `retained`: kept for a gang that is partially bound.",
                width=6,
            ),
            Query(or_zero(most("muster_reserved_members", "kind"), "kind"), "{{kind}}"),
            stacked=True,
        ),
    ]


def _cost() -> list[Panel]:
    return [
        graph(
            About(
                "Planners at work, by phase",
                "Share of the time of one planner. There are two.",
                "percentunit",
            ),
            Query(or_zero(total("muster_decision_phase_seconds", "phase"), "phase"), "{{phase}}"),
            stacked=True,
        ),
        graph(
            About("Exact methods", "Plans in a second in which a method decided at least one level.", "cps"),
            Query(or_zero(rate("muster_decision_methods_total", "method"), "method"), "{{method}}"),
        ),
        graph(
            About("Plans not proven best", "In a second. Their gap is in muster_decision_gap_ratio.", "cps"),
            Query(observations("muster_decision_gap_ratio"), "plans"),
        ),
    ]
