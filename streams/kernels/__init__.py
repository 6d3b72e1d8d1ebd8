"""The kernels: loops in numba's subset over arrays and memory, loaded in the background."""

from .loading import KernelLoader, Kernels, kernel_loader, loaded_kernels, more_kernels, observe

__all__ = ["KernelLoader", "Kernels", "kernel_loader", "loaded_kernels", "observe", "more_kernels"]
