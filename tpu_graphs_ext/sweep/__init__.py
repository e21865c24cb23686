"""Many trainings, or rankings of many files, in many processes.

pool         runs a function on items, in workers that may die
grid         what a sweep tries, from a file
trials       what a trial is, and its key
study        the Optuna studies of a sweep
training     what a worker does with a trial
leaderboard  the tables
sweep        from a grid to the leaderboard
storage      files by paths and URLs
rows         one row per kernel, as JSON and in Parquet
rank_shard   what a worker of `rank` does
rank_many    cuts files into shards, has them ranked, joins the rows
"""

SHARD_FILES = 64  # Of `rank`; ranked again if their worker dies.
