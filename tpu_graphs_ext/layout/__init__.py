"""The layout task: models that rank the layouts of whole programs.

models    every model; takes the place of the baseline's `layout/models.py`,
          and imports nothing of this project
"""
