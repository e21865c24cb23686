"""The baseline's checkout: found, copied, run, its models.py swapped.

checkout         finding a checkout, copying it, running its scripts
run_script       starts one script on either stack
allowed_imports  what a models.py may import there
swap             puts a models.py into the checkout and takes it out again
"""
