"""Architectures as code: shapes in, one whole training step of eager PyTorch out, without importing PyTorch."""
