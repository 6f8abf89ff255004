"""Published methods, re-implemented: what an honest forecast must beat."""
