"""The tiles to try, for kernels that nobody has timed yet.

sources  what a user names (a file, or a function of their own) -> kernels
picks    a trained model's first choices among all legal tiles, and why
told     what is told of them, and how that reads
"""
