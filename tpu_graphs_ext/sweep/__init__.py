"""Many trainings, or rankings of many files, in many processes.

pool         runs a function on items, in workers that may die
grid         what a sweep tries, from a file
trials       what a trial is, its key, its Optuna study, how a worker trains it
leaderboard  the tables
sweep        from a grid to the leaderboard
storage      input files by paths and URLs
rank_many    ranks files, and joins their rows
"""
