"""The layout task: models that rank the layouts of whole programs.

models      a link to layout_models.py, which takes the place of the
            baseline's own file
programs    a collection: graphs, configurations, runtimes
stored      its files in the cache, of which only what is used is read
batches     programs -> GraphTensors
settings    what a verb is told, with its flags' help
evaluation  Kendall's tau and other measures of labelled programs
task        what `host.task` asks of a task
"""
