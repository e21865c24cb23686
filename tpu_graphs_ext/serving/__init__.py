"""A trained model inside other people's programs, from Python and elsewhere.

cost_model  the model as an object: score, rank, explain
blocks      blocks for a product that is a Pallas kernel, in order
recent      the scores of what was asked lately
given       what names a kernel and its tiles there
program     the model as one TensorFlow program on plain tensors
batch       the same for several kernels at once, with checks that speak
export      the SavedModel of that, for whoever has TensorFlow alone
"""
