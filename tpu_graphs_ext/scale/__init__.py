"""Much work on many processes: of this machine, or of a cluster.

engine     items -> results, by workers that may die
processes  the workers of this machine
cluster    the workers of a Dask cluster
"""
