"""Every kind of operation to the kernels it launches, as rows of the fitted families.

Kinds that were measured (matmul, 3x3 convolution, elementwise, softmax, layer norm) map to their own family. The others are
carried over by counting what the real kernels of PyTorch move and multiply, and carry a wider spread.
"""

from traincast.cost._operators.kernels import KernelList, Kernels, list_kernels

__all__ = ["KernelList", "Kernels", "list_kernels"]
