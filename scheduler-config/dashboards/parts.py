"""The few kinds of panels that all dashboards are made of, and the PromQL that several of them need."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    tempo,
    timeseries,
)
from grafana_foundation_sdk.builders import text as markdown
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.tempo import SearchTableType

PROMETHEUS = DataSourceRef("prometheus", "${datasource}")
TRACES = DataSourceRef("tempo", "${traces}")
INTERVAL = "$__rate_interval"
TAG = "muster"
ROW_WIDTH = 24
LEAST_AXIS = {"s": 0.01, "cps": 1, "percentunit": 0.01, "short": 8}
"""Unit → how far an axis goes at least. Without it Grafana draws 0 on an axis up to 100."""
OK, WARNING, CRITICAL = "green", "orange", "red"

Panel = stat.Panel | timeseries.Panel | bargauge.Panel | table.Panel | markdown.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel, and the name of what it gives. Labels in {{ }} are filled in."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class About:
    """What a panel says of itself. `description` is for people who see it for the first time."""

    title: str
    description: str
    unit: str = "short"
    width: int = 8
    height: int = 8


# --- PromQL -----------------------------------------------------------------------------------------


def _by(*labels: str) -> str:
    return f"sum by ({', '.join(labels)}) " if any(labels) else "sum "


def quantile(share: float, histogram: str, *by: str) -> str:
    """Return a quantile, of native and of classic histograms: a Prometheus stores one of the two."""
    native = f"{_by(*by)}(rate({histogram}[{INTERVAL}]))"
    classic = f"{_by(*by, 'le')}(rate({histogram}_bucket[{INTERVAL}]))"
    return f"histogram_quantile({share:g}, {native}) or histogram_quantile({share:g}, {classic})"


def total(histogram: str, *by: str) -> str:
    """Return the sum of what a histogram has observed in a second, native or classic."""
    return (
        f"{_by(*by)}(histogram_sum(rate({histogram}[{INTERVAL}]))) "
        f"or {_by(*by)}(rate({histogram}_sum[{INTERVAL}]))"
    )


def observations(histogram: str, *by: str) -> str:
    """Return how often a histogram has observed something in a second, native or classic."""
    return (
        f"{_by(*by)}(histogram_count(rate({histogram}[{INTERVAL}]))) "
        f"or {_by(*by)}(rate({histogram}_count[{INTERVAL}]))"
    )


def rate(counter: str, *by: str) -> str:
    """Return the increase of a counter in a second, of all replicas."""
    return f"{_by(*by)}(rate({counter}[{INTERVAL}]))"


def most(gauge: str, *by: str) -> str:
    """Return a gauge of the replica that has most: only the leader works."""
    return f"max by ({', '.join(by)}) ({gauge})" if by else f"max({gauge})"


def or_zero(expr: str, label: str = "", value: str = "none") -> str:
    """Return 0 in place of nothing, so that a healthy cluster has no empty panel."""
    zero = f'label_replace(vector(0), "{label}", "{value}", "", "")' if label else "vector(0)"
    return f"{expr} or on() {zero}"


# --- panels -----------------------------------------------------------------------------------------


def _targets(queries: Sequence[Query], *, instant: bool, exemplars: bool) -> Iterable[prometheus.Dataquery]:
    for ref, query in zip(string.ascii_uppercase, queries, strict=False):
        target = prometheus.Dataquery().datasource(PROMETHEUS).ref_id(ref)
        target = target.expr(query.expr).legend_format(query.legend).exemplar(exemplars)
        yield target.instant() if instant else target.range()


def _steps(steps: Sequence[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(*step) for step in steps])
    )


def _colour(mode: str, fixed: str = "") -> dashboard.FieldColor:
    colour = dashboard.FieldColor().mode(FieldColorModeId(mode))
    return colour.fixed_color(fixed) if fixed else colour


def number(
    about: About, query: Query, *, warn: float | None = None, alarm: float | None = None
) -> stat.Panel:
    """Return a panel with one figure, coloured from `warn` and from `alarm` upwards."""
    steps: list[tuple[float | None, str]] = [(None, OK)]
    steps += [(at, colour) for at, colour in ((warn, WARNING), (alarm, CRITICAL)) if at is not None]
    return coloured_number(about, query, steps)


def coloured_number(about: About, query: Query, steps: Sequence[tuple[float | None, str]]) -> stat.Panel:
    """Return a panel with one figure. `steps`: from which value on it has which colour."""
    panel = stat.Panel().title(about.title).description(about.description).unit(about.unit)
    panel = panel.datasource(PROMETHEUS).span(about.width).height(about.height)
    panel = (
        panel.thresholds(_steps(steps)).color_mode(BigValueColorMode.VALUE).graph_mode(BigValueGraphMode.NONE)
    )
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for target in _targets([query], instant=True, exemplars=False):
        panel = panel.with_target(target)
    return panel


def graph(about: About, *queries: Query, stacked: bool = False, exemplars: bool = False) -> timeseries.Panel:
    """Return a panel with lines over time."""
    panel = timeseries.Panel().title(about.title).description(about.description).unit(about.unit)
    panel = panel.datasource(PROMETHEUS).span(about.width).height(about.height).min(0)
    panel = panel.line_width(1).fill_opacity(25 if stacked else 5).show_points(VisibilityMode.NEVER)
    panel = panel.axis_soft_max(LEAST_AXIS[about.unit])
    panel = panel.stacking(
        common.StackingConfig().mode(StackingMode.NORMAL if stacked else StackingMode.NONE)
    )
    panel = panel.tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    )
    legend = common.VizLegendOptions().show_legend(True)
    panel = panel.legend(legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM))
    for target in _targets(queries, instant=False, exemplars=exemplars):
        panel = panel.with_target(target)
    return panel


def bars(about: About, query: Query) -> bargauge.Panel:
    """Return a panel with a bar for each label, as it is now."""
    panel = bargauge.Panel().title(about.title).description(about.description).unit(about.unit).min(0)
    panel = panel.datasource(PROMETHEUS).span(about.width).height(about.height)
    panel = panel.orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC)
    panel = panel.color_scheme(_colour("fixed", "blue"))
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for target in _targets([query], instant=True, exemplars=False):
        panel = panel.with_target(target)
    return panel


def traces(about: About, traceql: str) -> table.Panel:
    """Return a table of traces that a TraceQL expression finds."""
    panel = table.Panel().title(about.title).description(about.description).unit(about.unit)
    panel = panel.datasource(TRACES).span(about.width).height(about.height)
    query = tempo.TempoQuery().datasource(TRACES).ref_id("A").query_type("traceql").query(traceql)
    return panel.with_target(query.limit(20).table_type(SearchTableType.TRACES))


def words(about: About, content: str) -> markdown.Panel:
    """Return a panel with text."""
    panel = markdown.Panel().title(about.title).description(about.description)
    return panel.span(about.width).height(about.height).content(content)


# --- dashboards -------------------------------------------------------------------------------------


def choice(name: str, label: str, query: str, *, only: str = "") -> dashboard.QueryVariable:
    """Return a variable with values from Prometheus: several or all, or one with the default `only`."""
    variable = dashboard.QueryVariable(name).label(label).datasource(PROMETHEUS).query(query)
    variable = variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    if only:
        return variable.current(VariableOption(text=only, value=only))
    variable = variable.multi(True).include_all(True).all_value(".*")
    return variable.current(VariableOption(text="All", value="$__all"))


def made_of(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[dashboard.QueryVariable | dashboard.DatasourceVariable],
    rows: dict[str, Sequence[Panel]],
) -> dashboard.Dashboard:
    """Return a dashboard. Its panels are in rows: each row has a question as its title."""
    source = dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    link = dashboard.DashboardLink("Muster").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    built = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly()
    built = (
        built.time("now-6h", "now").refresh("30s").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    )
    built = built.link(link.include_vars(True).keep_time(True)).with_variable(source)
    for variable in variables:
        built = built.with_variable(variable)
    number_of = iter(range(1, 1000))
    for question, panels in rows.items():
        built = built.with_row(dashboard.Row(question).id(next(number_of)))
        for panel in panels:
            built = built.with_panel(panel.id(next(number_of)))
    return built
