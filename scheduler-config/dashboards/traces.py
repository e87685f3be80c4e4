"""The dashboard of traces: from a slow phase to the gang that was slow, and to its spans."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import About, Query, graph, made_of, or_zero, quantile, total
from dashboards.parts import traces as table_of

GANG = '{ resource.service.name = "muster" && name = "gang"'


def traces() -> dashboard.Dashboard:
    """Return the dashboard."""
    source = dashboard.DatasourceVariable("traces").label("Traces (Tempo)").type("tempo")
    return made_of(
        "muster-traces",
        "Muster traces",
        "Where the time of gangs goes. A point on a line leads to the trace of a gang.",
        [source],
        {
            "Which phase is slow? Choose a point to see its trace": [
                graph(
                    About(
                        "Time of gangs by phase, 95 %",
                        "How long gangs were in a phase when they left it.",
                        "s",
                        12,
                    ),
                    Query(quantile(0.95, "muster_gang_phase_seconds", "phase"), "{{phase}}"),
                    exemplars=True,
                ),
                graph(
                    About("Time of decisions, 99 %", "By what came out of them.", "s", 12),
                    Query(quantile(0.99, "muster_decision_seconds", "outcome"), "{{outcome}}"),
                    exemplars=True,
                ),
            ],
            "Where does the time go in all?": [
                graph(
                    About(
                        "Planners, by phase",
                        "Share of the time of one planner. There are two.",
                        "percentunit",
                        12,
                    ),
                    Query(or_zero(total("muster_decision_phase_seconds", "phase"), "phase"), "{{phase}}"),
                    stacked=True,
                ),
                graph(
                    About(
                        "Calls of the scheduler, by method",
                        "Share of the time that some call of the service, or some Binding, is open.",
                        "percentunit",
                        12,
                    ),
                    Query(or_zero(total("muster_shim_unary_seconds", "method"), "method"), "{{method}}"),
                    Query(or_zero(total("muster_shim_binding_seconds")), "Binding"),
                    stacked=True,
                ),
            ],
            "Traces": [
                table_of(
                    About(
                        "Slow gangs",
                        "Attempts that took longer than 10 s. Choose one to see its spans.",
                        "s",
                        8,
                        10,
                    ),
                    f"{GANG} && duration > 10s }}",
                ),
                table_of(
                    About("Refused", "Attempts that ended with a refusal.", "s", 8, 10),
                    f'{GANG} && span.muster.outcome = "refused" }}',
                ),
                table_of(
                    About(
                        "Withdrawn",
                        "Attempts whose plan was withdrawn. muster.why says the reason.",
                        "s",
                        8,
                        10,
                    ),
                    f'{GANG} && span.muster.outcome = "withdrawn" }}',
                ),
            ],
        },
    )
