"""PyTorch traces: kernel times learned from one trace predict another's.

kineto      a file -> a trace: calls of the host, work of the GPU
sizes       what a kernel computes and moves, by its operator's shapes
calibrate   constants of a GPU, learned from a trace's kernels, and their file
replay      the time of a step: launches, streams, dependencies
analysis    predicted against measured: a table of kernels, sums, texts
"""
