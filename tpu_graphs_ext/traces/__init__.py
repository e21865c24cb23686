"""Traces of PyTorch: what operators took, and what a roofline says of them.

cli         the verb `trace`
read        a file -> a trace, of whichever kind it is
profile     traces of the profiler: calls, work of the GPU, times
execution   execution traces: calls and shapes
calls       what a trace holds; calls within one another as trees
launches    who launched the GPU's work, and for whom the GPU waited
shapes      shapes and types of a call's arguments
hardware    machines by name, or from a file
embeddings  what is looked up in tables, off the arguments
predict     roofline times of operators, by their kind
analysis    from the trace to rows, sums and errors
texts       these for people, as JSON, as CSV
flame       flame graphs
page        one HTML page of it all
"""
