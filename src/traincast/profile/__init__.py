"""Touches real clocks: experiments in, measured blocks out. Importing it needs no torch; measuring with it does."""
