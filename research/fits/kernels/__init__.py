"""Measured kernels in half precision, fp8 and fp4 to the constants of traincast.cost.{products,attention}; see __main__."""
