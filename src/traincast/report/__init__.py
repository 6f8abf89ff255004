"""Formats for eyes and for viewers: text, tables, traces, drawings."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.report._accuracy import FIT_HEADINGS as FIT_HEADINGS
    from traincast.report._accuracy import TIME_HEADINGS as TIME_HEADINGS
    from traincast.report._accuracy import fit_cells as fit_cells
    from traincast.report._accuracy import format_study as format_study
    from traincast.report._accuracy import format_study_markdown as format_study_markdown
    from traincast.report._accuracy import score_cells as score_cells
    from traincast.report._accuracy import splice as splice
    from traincast.report._accuracy import tabulate as tabulate
    from traincast.report._answer import format_answer as format_answer
    from traincast.report._compare import document_comparison as document_comparison
    from traincast.report._compare import format_comparison as format_comparison
    from traincast.report._document import document_forecast as document_forecast
    from traincast.report._document import format_json as format_json
    from traincast.report._document import plain_data as plain_data
    from traincast.report._follow_up import after_advice as after_advice
    from traincast.report._follow_up import after_fit as after_fit
    from traincast.report._follow_up import after_plan as after_plan
    from traincast.report._follow_up import place_of as place_of
    from traincast.report._frames import list_rows as list_rows
    from traincast.report._frames import make_frame as make_frame
    from traincast.report._memory import draw_memory as draw_memory
    from traincast.report._paint import Paint as Paint
    from traincast.report._paint import choose_paint as choose_paint
    from traincast.report._plan import document_search as document_search
    from traincast.report._plan import draw_front as draw_front
    from traincast.report._plan import format_deltas as format_deltas
    from traincast.report._plan import format_search as format_search
    from traincast.report._plan import say_candidate as say_candidate
    from traincast.report._plots import plot_front as plot_front
    from traincast.report._plots import plot_memory as plot_memory
    from traincast.report._plots import plot_scaling as plot_scaling
    from traincast.report._plots import plot_timeline as plot_timeline
    from traincast.report._prices import describe_range as describe_range
    from traincast.report._prices import format_prices as format_prices
    from traincast.report._resources import Lane as Lane
    from traincast.report._resources import draw_lanes as draw_lanes
    from traincast.report._schedule import align as align
    from traincast.report._schedule import describe_policies as describe_policies
    from traincast.report._schedule import format_policies as format_policies
    from traincast.report._schedule import format_sweep as format_sweep
    from traincast.report._schedule import perfetto as perfetto
    from traincast.report._schedule_charts import Curve as Curve
    from traincast.report._schedule_charts import draw_completion as draw_completion
    from traincast.report._schedule_charts import draw_curves as draw_curves
    from traincast.report._schedule_charts import draw_gantt as draw_gantt
    from traincast.report._schedule_charts import draw_queue as draw_queue
    from traincast.report._schedule_charts import draw_sweep as draw_sweep
    from traincast.report._schedule_charts import draw_use as draw_use
    from traincast.report._schedule_charts import format_page as format_page
    from traincast.report._schedule_charts import format_sweep_page as format_sweep_page
    from traincast.report._schedule_charts import name_file as name_file
    from traincast.report._svg import Point as Point
    from traincast.report._svg import draw_agreement as draw_agreement
    from traincast.report._svg import draw_reliability as draw_reliability
    from traincast.report._svg import draw_timeline as draw_timeline
    from traincast.report._table import PLAIN as PLAIN
    from traincast.report._table import Table as Table
    from traincast.report._table import format_markdown as format_markdown
    from traincast.report._table import format_table as format_table
    from traincast.report._text import describe_plan as describe_plan
    from traincast.report._text import describe_price as describe_price
    from traincast.report._text import describe_settings as describe_settings
    from traincast.report._text import format_assumptions as format_assumptions
    from traincast.report._text import format_forecast as format_forecast
    from traincast.report._text import say_memory as say_memory
    from traincast.report._text import say_next as say_next
    from traincast.report._text import show_energy as show_energy
    from traincast.report._text import top_tasks as top_tasks
    from traincast.report._text import top_work as top_work
    from traincast.report._trace import trace_forecast as trace_forecast

__getattr__ = load_lazily(
    __name__,
    {
        "_accuracy": (
            "FIT_HEADINGS",
            "TIME_HEADINGS",
            "fit_cells",
            "format_study",
            "format_study_markdown",
            "score_cells",
            "splice",
            "tabulate",
        ),
        "_compare": (
            "document_comparison",
            "format_comparison",
        ),
        "_document": (
            "document_forecast",
            "format_json",
            "plain_data",
        ),
        "_memory": ("draw_memory",),
        "_paint": (
            "Paint",
            "choose_paint",
        ),
        "_plan": (
            "document_search",
            "draw_front",
            "format_deltas",
            "format_search",
            "say_candidate",
        ),
        "_resources": (
            "Lane",
            "draw_lanes",
        ),
        "_schedule": (
            "align",
            "describe_policies",
            "format_policies",
            "format_sweep",
            "perfetto",
        ),
        "_schedule_charts": (
            "Curve",
            "draw_completion",
            "draw_curves",
            "draw_gantt",
            "draw_queue",
            "draw_sweep",
            "format_sweep_page",
            "draw_use",
            "format_page",
            "name_file",
        ),
        "_svg": (
            "Point",
            "draw_agreement",
            "draw_reliability",
            "draw_timeline",
        ),
        "_table": (
            "PLAIN",
            "Table",
            "format_markdown",
            "format_table",
        ),
        "_answer": ("format_answer",),
        "_follow_up": (
            "after_advice",
            "after_fit",
            "after_plan",
            "place_of",
        ),
        "_frames": (
            "list_rows",
            "make_frame",
        ),
        "_plots": (
            "plot_front",
            "plot_memory",
            "plot_scaling",
            "plot_timeline",
        ),
        "_prices": (
            "describe_range",
            "format_prices",
        ),
        "_text": (
            "describe_plan",
            "describe_price",
            "describe_settings",
            "format_assumptions",
            "format_forecast",
            "say_memory",
            "say_next",
            "show_energy",
            "top_tasks",
            "top_work",
        ),
        "_trace": ("trace_forecast",),
    },
)
