"""Formats for eyes and for viewers: text, tables, traces, drawings."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.report._accuracy import TIME_HEADINGS, format_study, format_study_markdown, score_cells, splice
    from traincast.report._answer import format_answer, format_remedies, tell_answer
    from traincast.report._can import format_held, format_ways
    from traincast.report._compare import document_comparison, format_comparison, format_log
    from traincast.report._details import describe_details, document_bars, document_row
    from traincast.report._document import document_forecast, format_json, plain_data
    from traincast.report._follow_up import after_advice, after_fit, after_no_plan, after_plan, place_of
    from traincast.report._frames import make_frame
    from traincast.report._memory import draw_memory
    from traincast.report._paint import Paint, choose_paint
    from traincast.report._plan import document_search, format_deltas, format_search, say_candidate
    from traincast.report._prices import format_prices
    from traincast.report._schedule import (
        describe_policies,
        format_goals,
        format_policies,
        format_starts,
        perfetto,
    )
    from traincast.report._schedule_charts import (
        format_page,
        name_file,
    )
    from traincast.report._svg import Point, draw_agreement
    from traincast.report._table import Table, format_table
    from traincast.report._text import (
        describe_plan,
        describe_price,
        describe_settings,
        format_assumptions,
        say_fit,
        say_memory,
        say_meter,
        say_next,
    )
    from traincast.report._trace import trace_forecast

__getattr__ = load_lazily(__name__)
