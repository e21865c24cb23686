"""PyTorch traces: kernel times learned from some predict those of others.

kineto      a file -> a trace: calls of the host, work of the GPU
kinds       what a kernel is, by its function's name
sizes       what a kernel computes and moves, by its operator's shapes
calibrate   constants of a GPU, learned from kernels, and their file
replay      the time of a step: launches, streams, dependencies
analysis    predicted against measured: a table of kernels, sums, texts
"""
