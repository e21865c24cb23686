"""Traces of PyTorch: what operators took, and what they should have taken.

cli         the verb `trace`
read        a file -> a trace, of whichever kind it is
profile     traces of the profiler: calls, work of the GPU, times
execution   execution traces: calls and shapes
calls       what a trace holds; calls within one another as trees
launches    who launched the GPU's work, and for whom the GPU waited
shapes      shapes and types of a call's arguments
hardware    machines by name, or from a file
embeddings  what is looked up in tables, off the arguments
predict     times of operators by rooflines, of kernels by a calibration
calibrate   constants of a GPU, learned from a trace's kernels
replay      the time of a step: launches, streams, dependencies
analysis    from the trace to rows, sums and errors
texts       these for people, as JSON, as CSV
"""
