"""Expressions over columns: numpy operations, forms of the function library and kernels, exact or unsure row by row."""
