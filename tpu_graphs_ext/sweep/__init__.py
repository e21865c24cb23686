"""Many trainings, or rankings of many files, in many processes.

pool       runs a function on items, in workers that may die
grid       what a sweep tries, from a file
trials     what a trial is, its key, its Optuna study, how a worker trains it
sweep      from a grid to the leaderboard
rank_many  ranks files of paths and URLs, and joins their rows
"""
