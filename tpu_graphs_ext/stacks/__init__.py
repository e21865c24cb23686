"""Which TensorFlow and Keras are in use, and the baseline on today's.

Imports nothing but the standard library, as it must come before TensorFlow.

versions        the two sets of versions, and the one in use
imports         makes `import tensorflow` give what is needed
estimator_stub  stands in for what TensorFlow Ranking misses today
quiet           keeps back what TensorFlow says to nobody
"""
