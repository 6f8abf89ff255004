"""Studies that depend on traincast and that traincast never depends on; see README.md."""
