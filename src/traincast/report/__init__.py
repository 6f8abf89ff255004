"""Formats for eyes and for viewers: text, tables, traces, drawings."""
