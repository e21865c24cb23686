"""Many trainings, and rankings of many files, on many processes.

cli          the verb `sweep`, and the flags of `rank` that name workers
pool         items -> results, by workers that may die
grid         what a sweep tries, from a file
ranges       one argument's values: some, or a range
checks       whether all of a grid can be trained
search       configurations, all or drawn by Optuna
trials       what a trial is, and what became of it
trial_run    what a worker does with one
watching     ends a trial that is poor or that nobody wants
pruning      which are poor
leaderboard  the tables
sweep        from a grid to the leaderboard
storage      files by paths and URLs
rows         a row a kernel, as JSON and in Parquet
rank_shard   what a worker of `rank` does
rank_many    cuts files into shards, has them ranked, joins the rows
"""
