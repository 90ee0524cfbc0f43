"""The parts that all dashboards have: variables, panels, links from one to the other."""

from __future__ import annotations

from typing import NamedTuple

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Panel,
    Threshold,
    ThresholdsMode,
    VariableModel,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "substream-tracker"  # the dashboards that link to each other

SECONDS, BYTES, RATE, COUNT = units.Seconds, units.BytesIEC, "cps", units.Short
BYTES_RATE, SHARE, MOMENT = units.BytesPerSecondIEC, units.PercentUnit, units.DateTimeFromNow


class Query(NamedTuple):
    """A query of a panel to Prometheus."""

    expression: str
    legend: str = ""


def rate(metric: str, of: str, by: str = "") -> str:
    """Return the expression of a counter's rate, summed.

    Args:
        metric: its name.
        of: the selector of its series.
        by: the labels that stay apart.
    """
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({metric}{of}[$__rate_interval]))"


def quantiles(metric: str, of: str, by: str = "") -> tuple[Query, Query]:
    """Return the queries for the median and the 99th percentile of a histogram.

    Args:
        metric: its name.
        of: the selector of its series.
        by: a label whose values stay apart.
    """
    named, grouped = (f"{{{{{by}}}}}: ", f"{by}, le") if by else ("", "le")

    def quantile(share: str) -> str:
        return f"histogram_quantile({share}, {rate(f'{metric}_bucket', of, grouped)})"

    return Query(quantile("0.5"), f"{named}half of them"), Query(quantile("0.99"), f"{named}99 of 100")


def dashboard(uid: str, title: str, description: str) -> builders.Dashboard:
    """Return a dashboard without panels, with a variable for the data source and links to the other dashboards."""
    links = builders.DashboardLink("Tracker").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    source = builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(links.as_dropdown(False).include_vars(True).keep_time(True))
        .with_variable(source)
    )


def choice(name: str, label: str, metric: str, of: str, several: bool = True) -> Builder[VariableModel]:
    """Return a variable whose values are those of a label.

    Args:
        name: of the variable.
        label: above its list.
        metric: a selector of series that have the label.
        of: the label.
        several: whether several values, and all, can be chosen.
    """
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {of})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return variable.multi(True).include_all(True).all_value(".*") if several else variable


def graph(
    title: str, description: str, unit: str, *queries: Query, width: int = 8, stacked: bool = False
) -> Builder[Panel]:
    """Return a panel of lines over time.

    Args:
        title: of the panel.
        description: what it shows, and what to look for.
        unit: one of Grafana's.
        queries: what is drawn.
        width: of the 24 columns.
        stacked: draw the lines upon each other.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .fill_opacity(20 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    for place, query in enumerate(queries):
        panel = panel.with_target(
            prometheus.Dataquery()
            .datasource(SOURCE)
            .ref_id(chr(ord("A") + place))
            .expr(query.expression)
            .legend_format(query.legend)
            .range()
        )
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    expression: str,
    red_from: float | None = None,
    red_below: float | None = None,
) -> Builder[Panel]:
    """Return a panel of one number, the newest.

    Args:
        title: of the panel.
        description: what it shows, and what to look for.
        unit: one of Grafana's.
        expression: what is asked.
        red_from: the number is red from here on.
        red_below: the number is red below this.
    """
    steps = [Threshold(None, "red" if red_below is not None else "green")]
    if red_below is not None:
        steps.append(Threshold(red_below, "green"))
    if red_from is not None:
        steps.append(Threshold(red_from, "red"))
    plain = red_from is None and red_below is None
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(4)
        .height(4)
        .color_mode(common.BigValueColorMode.NONE if plain else common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(builders.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .thresholds(builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(prometheus.Dataquery().datasource(SOURCE).ref_id("A").expr(expression).instant())
    )


class Column(NamedTuple):
    """A column of a table of jobs."""

    title: str
    unit: str
    expression: str


def rows(title: str, description: str, label: str, link: str, columns: list[Column]) -> Builder[Panel]:
    """Return a table with a row for each value of a label.

    Args:
        title: of the panel.
        description: what it shows.
        label: that makes the rows; it is the first column.
        link: the address that the label's values lead to.
        columns: the other columns.
    """
    panel = table.Panel().title(title).description(description).datasource(SOURCE).span(24).height(8)
    names = {}
    for place, column in enumerate(columns):
        ref = chr(ord("A") + place)
        names[f"Value #{ref}"] = column.title
        panel = panel.with_target(
            prometheus.Dataquery()
            .datasource(SOURCE)
            .ref_id(ref)
            .expr(column.expression)
            .format(PromQueryFormat.TABLE)
            .instant()
        ).override_by_name(column.title, [DynamicConfigValue("unit", column.unit)])
    return (
        panel.unit(COUNT)
        .align(common.FieldTextAlignment.AUTO)
        .with_transformation(DataTransformerConfig("merge", options={}))
        .with_transformation(
            DataTransformerConfig("organize", options={"excludeByName": {"Time": True}, "renameByName": names})
        )
        .override_by_name(label, [DynamicConfigValue("links", [{"title": "Show this one", "url": link}])])
    )
