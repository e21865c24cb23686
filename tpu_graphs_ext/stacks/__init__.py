"""Which TensorFlow and Keras are in use; the baseline on TensorFlow 2.21.

Imports only the standard library, as it must come before TensorFlow. The .txt
files are the requirements of both stacks, which setup.py reads.

versions  the two sets of versions, and the one in use
imports   makes `import tensorflow` give what is needed
"""
