"""The comparisons that the four source papers made: identical rows, splits and measuring budget for every method."""
